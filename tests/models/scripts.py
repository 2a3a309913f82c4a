"""Helpers: a script in a file, and a query to a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic_ai.messages import ModelRequest, UserPromptPart
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.settings import ModelSettings

from guildhall.models.model import Query

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic_ai.messages import ModelMessage


def write_script(folder: Path, text: str) -> Path:
    """Write a script file, and return its path."""
    path = folder / "answers.yaml"
    path.write_text(text)
    return path


def start_conversation(text: str = "hello") -> list[ModelMessage]:
    """Return a conversation of one user message."""
    return [ModelRequest(parts=[UserPromptPart(text)], instructions="be brief")]


def query(messages: list[ModelMessage] | None = None, **changes: Any) -> Query:
    """Return a query of the worker `coder`. `changes` are fields of Query."""
    fields: dict[str, Any] = {
        "worker": "coder",
        "ordinal": 0,
        "attempt": 0,
        "messages": messages if messages is not None else start_conversation(),
        "settings": ModelSettings(),
        "parameters": ModelRequestParameters(),
    }
    return Query(**{**fields, **changes})
