"""What the tests of this floor share: a script in a file, a question to a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic_ai.messages import ModelRequest, UserPromptPart
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.settings import ModelSettings

from guildhall.models.model import Query

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic_ai.messages import ModelMessage


def script(folder: Path, text: str) -> Path:
    """The text as a script in a file."""
    path = folder / "answers.yaml"
    path.write_text(text)
    return path


def asked(text: str = "hello") -> list[ModelMessage]:
    """A conversation that has just begun."""
    return [ModelRequest(parts=[UserPromptPart(text)], instructions="be brief")]


def query(messages: list[ModelMessage] | None = None, **changes: Any) -> Query:
    """A question of the worker `coder`; `changes` are fields of Query."""
    fields: dict[str, Any] = {
        "worker": "coder",
        "ordinal": 0,
        "attempt": 0,
        "messages": messages if messages is not None else asked(),
        "settings": ModelSettings(),
        "parameters": ModelRequestParameters(),
    }
    return Query(**{**fields, **changes})
