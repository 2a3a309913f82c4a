"""The data of a provider's server-sent events, as JSON."""

from __future__ import annotations

import json
from typing import Any, cast

from guildhall.models.dialects.model import Malformed

MAX_EVENT_BYTES = 16_000_000
DONE = "[DONE]"  # ends the events of OpenAI's Chat Completions, and is not JSON


def read_event(data: bytes) -> dict[str, Any] | str | None:
    """Return the object of an event, DONE, or None if the event has no data. Raise Malformed for anything else."""
    if not data:
        return None
    if data.strip() == DONE.encode():
        return DONE
    try:
        value: Any = json.loads(data)
    except (ValueError, RecursionError):
        raise Malformed("an event of the answer is not JSON") from None
    if not isinstance(value, dict):
        raise Malformed("an event of the answer is not an object")
    return cast("dict[str, Any]", value)
