"""Server-sent events: splits a stream that arrives in pieces of any size into events.

Does not interpret the data of an event. Invariant: an incomplete event takes at most `max_bytes` of memory.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

_BLANK_LINE = re.compile(rb"\n\r?\n|\r\r")
_LONGEST_END = 3  # bytes of a blank line


class ServerEvent(NamedTuple):
    """An event: its bytes as they came, and its data, which is empty for a comment."""

    raw: bytes
    data: bytes


class EventTooLarge(Exception):
    """An event exceeds the limit."""


class EventReader:
    """Collects a stream until its events are complete."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._rest = bytearray()
        self._searched = 0  # up to here the rest has no blank line

    def feed(self, data: bytes) -> Iterator[ServerEvent]:
        """Yield the events that are complete with this piece. Raise EventTooLarge if the next one is too large."""
        self._rest += data
        while end := _BLANK_LINE.search(self._rest, self._searched):
            raw = bytes(self._rest[: end.end()])
            del self._rest[: end.end()]
            self._searched = 0
            yield ServerEvent(raw, _data(raw))
        self._searched = max(0, len(self._rest) - _LONGEST_END + 1)
        if len(self._rest) > self._max_bytes:
            raise EventTooLarge


def _data(raw: bytes) -> bytes:
    lines = (line for line in raw.splitlines() if line.startswith(b"data:"))
    return b"\n".join(line[5:].removeprefix(b" ") for line in lines)
