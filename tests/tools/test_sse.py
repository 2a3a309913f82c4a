"""Server-sent events: parsed from chunks of every size, with every line break."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guildhall.core.sse import EventReader, EventTooLarge

STREAM = [b"event: a", b"data: 1", b"data:2", b"", b": comment", b"", b"id: 3", b"data:  x", b"retry", b""]


def read_events(stream: bytes, size: int) -> list[bytes]:
    reader = EventReader(1000)
    pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
    return [event.data for piece in pieces for event in reader.feed(piece)]


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("size", range(1, 12))
def test_events_are_cut_at_blank_lines_in_pieces_of_every_size(end: bytes, size: int) -> None:
    stream = b"".join(line + end for line in STREAM)
    assert read_events(stream, size) == [b"1\n2", b"", b" x"]


@pytest.mark.parametrize("stream", [b"data: a\r\rdata: b\r\r", b"data: a\r\n\ndata: b\n\r\n"])
def test_mixed_line_breaks_end_events(stream: bytes) -> None:
    assert read_events(stream, len(stream)) == [b"a", b"b"]


def test_an_incomplete_event_is_not_returned() -> None:
    assert read_events(b"data: a\n\ndata: b\n", 3) == [b"a"]


def test_an_event_that_is_too_large_is_refused() -> None:
    reader = EventReader(100)
    assert list(reader.feed(b"data: " + b"x" * 90)) == []
    with pytest.raises(EventTooLarge):
        list(reader.feed(b"data: " + b"x" * 90))


@given(st.lists(st.sampled_from([b"data: x", b"\n", b"\r\n", b"\n\n", b"\xff", b":", b"event: y"]), max_size=30))
def test_no_byte_is_lost_or_repeated(pieces: list[bytes]) -> None:
    reader = EventReader(10_000)
    raw = b"".join(event.raw for piece in pieces for event in reader.feed(piece))
    assert b"".join(pieces).startswith(raw)
