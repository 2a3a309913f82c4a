"""Provider errors: classify a failure by its HTTP status and the provider's message, and explain it.

The patterns match the messages of Anthropic and OpenAI. Providers with compatible formats mostly copy them.
Does not retry: `door` does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, cast

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

_TOO_LONG = re.compile(
    r"prompt is too long|context_length_exceeded|maximum context length|context (window|limit)|input is too long"
    r"|request_too_large|string_above_max_length",
    re.IGNORECASE,
)
_NO_CREDIT = re.compile(r"credit balance|insufficient_quota|exceeded your current quota|billing_error", re.IGNORECASE)
_UNKNOWN_MODEL = re.compile(r"model_not_found|model.{0,80}(does not exist|not found)|not_found_error", re.IGNORECASE)
_OVERLOADED = re.compile(r"overloaded|server_is_busy|at capacity", re.IGNORECASE)
_KEY_REFUSED = re.compile(r"authentication_error|permission_error|invalid_api_key|invalid x-api-key", re.IGNORECASE)
_RATE_LIMIT = re.compile(r"rate_limit|too many requests", re.IGNORECASE)
_MAX_MESSAGE_CHARS = 500

TRANSIENT_ERRORS = (RateLimited, Overloaded, NotReachable)
_HINTS: Mapping[type[ModelFailed], str] = {
    NoCredit: "Top up the account, or choose another model.",
    ContextTooLong: "Start a new run with less input, or with a model that has a larger context.",
}

_MESSAGES: Mapping[type[ModelFailed], str] = {
    KeyRefused: "{name} rejected the key",
    NoCredit: "the account of {name} has no credit or quota left",
    UnknownModel: "the provider does not know {name}",
    ContextTooLong: "the conversation is too long for {name}",
    RateLimited: "{name} rejected the request: rate limit",
    Overloaded: "{name} is overloaded",
    NotReachable: "{name} cannot be reached",
}


def error_class(status: int | None, message: str) -> type[ModelFailed]:
    """Return the class of a failure.

    `message` is the provider's whole message. A response that fails after it has begun has no status, so only
    the message is used.
    """
    if status == 402 or _NO_CREDIT.search(message):
        return NoCredit
    if status == 413 or (status in {None, 400, 422} and _TOO_LONG.search(message)):
        return ContextTooLong
    if status in {401, 403} or (status is None and _KEY_REFUSED.search(message)):
        return KeyRefused
    if status == 404 or (status in {None, 400} and _UNKNOWN_MODEL.search(message)):
        return UnknownModel
    if status == 429 or (status is None and _RATE_LIMIT.search(message)):
        return RateLimited
    if status in {503, 529} or ((status is None or status >= 500) and _OVERLOADED.search(message)):
        return Overloaded
    return ModelFailed


def build_error(
    kind: type[ModelFailed],
    name: str,
    reason: str,
    *,
    status: int | None = None,
    retry_after: float | None = None,
    transient: bool | None = None,
    message: str | None = None,
    hint: str | None = None,
) -> ModelFailed:
    """Return an error with our message and the provider's. `message` replaces our message for its class."""
    is_retryable = kind in TRANSIENT_ERRORS or (status is not None and is_transient(status) and kind is ModelFailed)
    return kind(
        f"{message or _MESSAGES.get(kind, '{name} failed').format(name=name)}: {reason}",
        transient=is_retryable if transient is None else transient,
        status=status,
        retry_after=retry_after,
        hint=hint or _HINTS.get(kind),
    )


def provider_message(body: Any) -> str | None:
    while isinstance(body, dict):
        error = cast("dict[str, Any]", body)
        body = error.get("error", error.get("message"))
    return body if isinstance(body, str) else None


def clean_line(text: str, secrets: Mapping[str, str]) -> str:
    """Return a text on one line, shortened and without secrets. `secrets` maps each value to its replacement."""
    line = " ".join(redact(text, secrets).split())
    return line if len(line) <= _MAX_MESSAGE_CHARS else f"{line[:_MAX_MESSAGE_CHARS]} ..."


def decode_body(data: bytes) -> Any:
    """Return a body as JSON, or as text if it is not JSON."""
    text = data.decode("utf-8", "replace")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def parse_retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that the provider asks to wait, or None. Dates are ignored."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) * unit
        except ValueError:
            continue
        if 0 <= seconds < 1e9:
            return seconds
    return None
