"""Provider errors: classify a failure by its HTTP status and the provider's message, and explain it.

The patterns match the messages of Anthropic and OpenAI. Providers with compatible formats mostly copy them.
Does not retry: `door` does.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, cast

from guildhall.core.errors import (
    ContextTooLong,
    KeyRefused,
    ModelFailed,
    NoCredit,
    NotReachable,
    Overloaded,
    RateLimited,
    UnknownModel,
)
from guildhall.core.redaction import redact
from guildhall.models.model import is_transient

if TYPE_CHECKING:
    from collections.abc import Mapping

_TOO_LONG = re.compile(
    r"prompt is too long|context_length_exceeded|maximum context length|context (window|limit)|input is too long"
    r"|request_too_large|string_above_max_length",
    re.IGNORECASE,
)
_NO_CREDIT = re.compile(r"credit balance|insufficient_quota|exceeded your current quota|billing_error", re.IGNORECASE)
_UNKNOWN_MODEL = re.compile(r"model_not_found|model.{0,80}(does not exist|not found)|not_found_error", re.IGNORECASE)
_OVERLOADED = re.compile(r"overloaded|server_is_busy|at capacity", re.IGNORECASE)
_REFUSED = re.compile(r"authentication_error|permission_error|invalid_api_key|invalid x-api-key", re.IGNORECASE)
_RATE = re.compile(r"rate_limit|too many requests", re.IGNORECASE)
_LONGEST = 500  # characters of a provider's words

PASSING = (RateLimited, Overloaded, NotReachable)
_HINTS: Mapping[type[ModelFailed], str] = {
    NoCredit: "Top it up, or choose another model.",
    ContextTooLong: "Give the worker less to read at once, or a model with a larger context, in a new run.",
}

_WORDS: Mapping[type[ModelFailed], str] = {
    KeyRefused: "{name} does not accept the key",
    NoCredit: "the account behind {name} has no credit or quota left",
    UnknownModel: "{name} is not known to the provider",
    ContextTooLong: "the conversation is too long for {name}",
    RateLimited: "{name} was asked too much at once",
    Overloaded: "{name} is overloaded",
    NotReachable: "{name} cannot be reached",
}


def kind_of(status: int | None, words: str) -> type[ModelFailed]:
    """The class of a failure, by its HTTP status and by what the provider said, all of it.

    An answer may fail after it has begun: there is no status then, and only the words tell.
    """
    if status == 402 or _NO_CREDIT.search(words):
        return NoCredit
    if status == 413 or (status in {None, 400, 422} and _TOO_LONG.search(words)):
        return ContextTooLong
    if status in {401, 403} or (status is None and _REFUSED.search(words)):
        return KeyRefused
    if status == 404 or (status in {None, 400} and _UNKNOWN_MODEL.search(words)):
        return UnknownModel
    if status == 429 or (status is None and _RATE.search(words)):
        return RateLimited
    if status in {503, 529} or ((status is None or status >= 500) and _OVERLOADED.search(words)):
        return Overloaded
    return ModelFailed


def explained(
    kind: type[ModelFailed],
    name: str,
    said: str,
    *,
    status: int | None = None,
    retry_after: float | None = None,
    transient: bool | None = None,
    words: str | None = None,
    hint: str | None = None,
) -> ModelFailed:
    """A failure in our words, with the provider's own behind them. `words`: ours, where they are others than ever."""
    passes = kind in PASSING or (status is not None and is_transient(status) and kind is ModelFailed)
    return kind(
        f"{words or _WORDS.get(kind, '{name} failed').format(name=name)}: {said}",
        transient=passes if transient is None else transient,
        status=status,
        retry_after=retry_after,
        hint=hint or _HINTS.get(kind),
    )


def said_in(body: Any) -> str | None:
    """What the provider said, out of the body of its error, where there are words in it."""
    while isinstance(body, dict):
        error = cast("dict[str, Any]", body)
        body = error.get("error", error.get("message"))
    return body if isinstance(body, str) else None


def one_line(text: str, secrets: Mapping[str, str]) -> str:
    """The text on one line, not too long, without these values; each has the name that takes its place."""
    line = " ".join(redact(text, secrets).split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]} ..."


def read_body(data: bytes) -> Any:
    """The body of an error as JSON, or as text where it is none."""
    text = data.decode("utf-8", "replace")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def retry_after_of(headers: Mapping[str, str]) -> float | None:
    """How many seconds the provider wants to be left alone. A date is not read: the door has a pause of its own."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) * unit
        except ValueError:
            continue
        if 0 <= seconds < 1e9:
            return seconds
    return None
