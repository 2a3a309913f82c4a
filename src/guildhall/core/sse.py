"""Server-sent events: splits a byte stream into events.

The reader does not interpret the data of an event.

Invariant: an incomplete event takes at most `max_bytes` of memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_BLANK_LINE = re.compile(rb"\n\r?\n|\r\r")
_MAX_BLANK_LINE_BYTES = 3


class ServerEvent(NamedTuple):
    """The bytes of an event and its data. The data of a comment is empty."""

    raw: bytes
    data: bytes


class EventTooLarge(Exception):
    """An event is larger than `max_bytes`."""


class EventReader:
    """Collects the pieces of a stream until an event is complete."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._buffer = bytearray()
        self._searched = 0  # number of bytes without the start of a blank line

    def feed(self, data: bytes) -> Iterator[ServerEvent]:
        """Yield the events that this piece completes. Raise EventTooLarge if the incomplete event is too large."""
        self._buffer += data
        while end := _BLANK_LINE.search(self._buffer, self._searched):
            raw = bytes(self._buffer[: end.end()])
            del self._buffer[: end.end()]
            self._searched = 0
            lines = (line for line in raw.splitlines() if line.startswith(b"data:"))
            yield ServerEvent(raw, b"\n".join(line[5:].removeprefix(b" ") for line in lines))
        self._searched = max(0, len(self._buffer) - _MAX_BLANK_LINE_BYTES + 1)
        if len(self._buffer) > self._max_bytes:
            raise EventTooLarge
