"""Types of model calls: the query, the `Source` protocol that answers it, and the upstream of a provider.

Does not perform I/O and does not contain sources: `providers`, `scripted.source` and `catalog` do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    from ssl import SSLContext

    from pydantic_ai.messages import ModelMessage, ModelRequestPart, ModelResponse
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.settings import ModelSettings
    from pydantic_ai.usage import RequestUsage

    from guildhall.core.errors import ModelFailed

VOTER = "election."  # before an agent's name: the worker that casts its vote, in the run of an election
OnText = Callable[[str], None]  # hears each piece of text while it is being written
_CHARACTERS_PER_TOKEN = 4
_PIECES = 4  # of a text that is streamed although it is complete


@dataclass(frozen=True, kw_only=True)
class Query:
    """One question to a model: the whole conversation so far, the tools it is shown, the settings.

    `worker`, `ordinal` (the how-manieth run of that worker in its tree, from 0) and `attempt` (how often this very
    question has failed before) let a script answer without keeping any state of its own.
    """

    worker: str
    ordinal: int
    attempt: int
    messages: Sequence[ModelMessage]
    settings: ModelSettings
    parameters: ModelRequestParameters

    @property
    def step(self) -> int:
        """How many answers this conversation already holds."""
        return sum(1 for message in self.messages if message.kind == "response")


@dataclass(frozen=True, kw_only=True)
class Upstream:
    """Where a provider takes requests in a format of its own, and what it is shown to be let in."""

    name: str  # as it is shown: `anthropic:claude-sonnet-5-5`
    url: str  # the address below which the paths of the API are
    model: str  # as the provider calls it
    headers: Mapping[str, str] = field(repr=False)  # with the key, or the login
    login: bool = False  # a person's login with Claude, not a key
    ssl: SSLContext | None = field(repr=False)
    failure: Callable[[int | None, Any, float | None], ModelFailed] = field(repr=False)  # by status, body, retry-after
    clean: Callable[[str], str] = field(repr=False)  # a text without the key


class Source(Protocol):
    """Who answers: a provider, a script, a recording."""

    @property
    def name(self) -> str:
        """The model as it is shown: `anthropic:claude-sonnet-5-5`, `script:review.yaml`."""
        ...

    def cost(self, usage: RequestUsage) -> float | None:
        """What this usage costs in dollars; None when the model has no price."""
        ...

    def takes(self, media_type: str) -> bool:
        """Whether it can be sent a file of this type, an image or a PDF, to look at."""
        ...

    def upstream(self, api: str) -> Upstream | None:
        """Where a request in the format of this API can be passed on as it is; None: it is answered by `answer`."""
        ...

    async def answer(self, query: Query, on_text: OnText) -> ModelResponse:
        """The answer, whole. Raises ModelFailed, transient or not."""
        ...


def is_transient(status: int) -> bool:
    """Whether a provider that answered with this HTTP status may well answer when it is asked again."""
    return status in {408, 409, 429} or status >= 500


def system_text(messages: Sequence[ModelMessage]) -> str:
    """Return the system prompt that a model was sent."""
    for message in messages:
        if message.kind == "request" and message.instructions:
            return message.instructions
    return "\n".join(
        part.content for message in messages for part in message.parts if part.part_kind == "system-prompt"
    )


def sent_text(messages: Sequence[ModelMessage]) -> str:
    """Return the prompts and tool results that a model was sent since its last answer, without the instructions."""
    return sent_each_time(messages)[-1]


def sent_each_time(messages: Sequence[ModelMessage]) -> list[str]:
    """Return the new prompts and tool results before each answer, and last those that are not yet answered."""
    found: list[list[str]] = [[]]
    for message in messages:
        if message.kind == "response":
            found.append([])
        else:
            found[-1] += (text_of(part) for part in message.parts if part.part_kind != "system-prompt")
    return ["\n".join(filter(None, texts)) for texts in found]


def text_of(part: ModelRequestPart) -> str:
    if part.part_kind == "user-prompt":
        content = [part.content] if isinstance(part.content, str) else part.content
        texts = (item if isinstance(item, str) else getattr(item, "content", None) for item in content)
        return "\n".join(text for text in texts if isinstance(text, str))
    if part.part_kind == "tool-return":
        return part.model_response_str(wrap_if_error=False)
    if part.part_kind in {"retry-prompt", "retry-feedback"}:
        return cast("Any", part).model_response()
    content = getattr(part, "content", None)
    return content if isinstance(content, str) else ""


def pieces(text: str) -> list[str]:
    """Split a text into a few pieces, as if it were streamed."""
    size = max(1, math.ceil(len(text) / _PIECES))
    return [text[start : start + size] for start in range(0, len(text), size)]


def tokens(characters: int) -> int:
    """Estimate the tokens of a text by its length."""
    return math.ceil(characters / _CHARACTERS_PER_TOKEN)
