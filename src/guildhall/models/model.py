"""Types of model calls: the query, the `Source` protocol that answers it, and the upstream of a provider.

Does not perform I/O and does not contain sources: `provider_source`, `scripted.source` and `catalog` do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast
from urllib.parse import urlsplit

from guildhall.core.config import ModelTimeouts

if TYPE_CHECKING:
    from ssl import SSLContext

    from pydantic_ai.messages import ModelMessage, ModelRequestPart, ModelResponse
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.settings import ModelSettings
    from pydantic_ai.usage import RequestUsage

    from guildhall.core.errors import ModelFailed

VOTER_PREFIX = "election."  # precedes the name of an agent in the run that casts its vote
OnText = Callable[[str], None]  # gets each chunk of text while it arrives
_CHARS_PER_TOKEN = 4
_MAX_CHUNKS = 4  # for a text that is streamed although it is complete


@dataclass(frozen=True, kw_only=True)
class Query:
    """The input of one model call: the conversation, the visible tools and the settings.

    `ordinal` is the index of this run among the worker's runs in the tree. `attempt` counts the failures of this call
    so far. With both, a script can answer without any state.
    """

    worker: str
    ordinal: int
    attempt: int
    messages: Sequence[ModelMessage]
    settings: ModelSettings
    parameters: ModelRequestParameters

    @property
    def step(self) -> int:
        return sum(1 for message in self.messages if message.kind == "response")


@dataclass(frozen=True, kw_only=True)
class Upstream:
    """The address of a provider and the headers that authorize a request in the provider's own format."""

    name: str  # with the provider: `anthropic:claude-sonnet-5-5`
    url: str  # the base of the API's paths
    model: str  # the provider's name of the model
    headers: Mapping[str, str] = field(repr=False)  # with the key or the login
    has_login: bool = False  # a Claude login and not a key
    ssl: SSLContext | None = field(repr=False)
    timeouts: ModelTimeouts = field(default_factory=ModelTimeouts)
    make_error: Callable[[int | None, Any, float | None], ModelFailed] = field(repr=False)  # status, body, retry-after
    redact: Callable[[str], str] = field(repr=False)  # removes the key from a text

    @property
    def address(self) -> str:
        return display_url(self.url)


class Source(Protocol):
    """A provider, a script or a recording that answers model calls."""

    @property
    def name(self) -> str: ...

    def cost(self, usage: RequestUsage, service_tier: str | None = None) -> float | None:
        """Return the cost in dollars, or None if the model has no price."""
        ...

    def accepts(self, media_type: str) -> bool:
        """Return True if the model accepts a file of this type (an image or a PDF)."""
        ...

    def upstream(self, api: str) -> Upstream | None:
        """Return the upstream for requests in the format of this API, or None if only `answer` can be used."""
        ...

    async def unsupported_settings(self, settings: Mapping[str, Any]) -> list[str]:
        """Return the names of the settings that the model would ignore. Sends nothing."""
        ...

    async def answer(self, query: Query, on_text: OnText) -> ModelResponse:
        """Return the complete answer. Raise ModelFailed."""
        ...


def display_url(url: str) -> str:
    """Return a URL without user name, password and query, for errors."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def is_transient(status: int) -> bool:
    """Return True if a request that failed with this HTTP status may succeed when it is repeated."""
    return status in {408, 409, 429} or status >= 500


def system_text(messages: Sequence[ModelMessage]) -> str:
    for message in messages:
        if message.kind == "request" and message.instructions:
            return message.instructions
    parts = (part for message in messages for part in message.parts)
    return "\n".join(part.content for part in parts if part.part_kind == "system-prompt")


def latest_input(messages: Sequence[ModelMessage]) -> str:
    """Return the prompts and tool results since the last answer, without the instructions."""
    return inputs_by_step(messages)[-1]


def inputs_by_step(messages: Sequence[ModelMessage]) -> list[str]:
    """Return the input of each step: its prompts and tool results. The last step has no answer yet."""
    found: list[list[str]] = [[]]
    for message in messages:
        if message.kind == "response":
            found.append([])
        else:
            found[-1] += (part_text(part) for part in message.parts if part.part_kind != "system-prompt")
    return ["\n".join(filter(None, texts)) for texts in found]


def part_text(part: ModelRequestPart) -> str:
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


def split_text(text: str) -> list[str]:
    """Split a text into a few chunks, as if it were streamed."""
    size = max(1, math.ceil(len(text) / _MAX_CHUNKS))
    return [text[start : start + size] for start in range(0, len(text), size)]


def estimate_tokens(characters: int) -> int:
    return math.ceil(characters / _CHARS_PER_TOKEN)
