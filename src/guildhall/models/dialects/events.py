"""Server-sent events as they come off a connection: in pieces of any size, each event handed on as the bytes it was."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, cast

from guildhall.models.dialects.model import Malformed

if TYPE_CHECKING:
    from collections.abc import Iterator

LARGEST = 16_000_000  # bytes of one event
DONE = "[DONE]"  # what ends the events of OpenAI's Chat Completions, and is no JSON
_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")


class Events:
    """Cuts a stream into events. What is not complete yet waits for the rest of it."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._looked = 0  # so far there is no end in what waits

    def take(self, data: bytes) -> Iterator[tuple[bytes, dict[str, Any] | str | None]]:
        """The events that are complete now: their bytes, and what they say; None: nothing, as in a comment."""
        self._rest += data
        while end := _END.search(self._rest, self._looked):
            raw = bytes(self._rest[: end.end()])
            del self._rest[: end.end()]
            self._looked = 0
            yield raw, _said(raw)
        self._looked = max(0, len(self._rest) - 3)
        if len(self._rest) > LARGEST:
            raise Malformed(f"an event of the answer is larger than {LARGEST:,} bytes")

    @property
    def rest(self) -> bytes:
        """What is left without an end."""
        return bytes(self._rest)


def _said(raw: bytes) -> dict[str, Any] | str | None:
    lines = (line for line in raw.splitlines() if line.startswith(b"data:"))
    data = b"\n".join(line[5:].removeprefix(b" ") for line in lines)
    if not data:
        return None
    if data.strip() == DONE.encode():
        return DONE
    try:
        told: Any = json.loads(data)
    except (ValueError, RecursionError):
        raise Malformed("an event of the answer is not JSON") from None
    if not isinstance(told, dict):
        raise Malformed("an event of the answer is not an object")
    return cast("dict[str, Any]", told)
