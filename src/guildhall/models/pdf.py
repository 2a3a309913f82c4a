"""How many pages a PDF has, near enough to reserve the tokens that they cost. Not a reader of PDFs."""

from __future__ import annotations

import re
import zlib

_PAGE = re.compile(rb"/Type\s*/Page(?![A-Za-z])")
_STREAM = re.compile(rb"/ObjStm\b.{0,400}?stream\r?\n", re.DOTALL)
_MOST_UNPACKED = 20_000_000  # bytes: of a small file that claims to be a huge one, no more is looked at
_BYTES_A_HIDDEN_PAGE = 2_000  # the least that a page takes, where pages cannot be counted
_MOST_HIDDEN = 100  # pages: what most providers take in one file


def pages(data: bytes) -> int:
    """The pages, those in packed objects too; where none can be seen, as many as could be in a file of this size."""
    found = len(_PAGE.findall(data)) + sum(len(_PAGE.findall(text)) for text in _unpacked(data))
    return found or min(max(1, len(data) // _BYTES_A_HIDDEN_PAGE), _MOST_HIDDEN)


def _unpacked(data: bytes) -> list[bytes]:
    """What is in the streams that hold objects, up to a limit."""
    texts: list[bytes] = []
    left = _MOST_UNPACKED
    end = 0
    while left > 0 and (stream := _STREAM.search(data, end)):  # each byte is passed once
        if (end := data.find(b"endstream", stream.end())) < 0:
            break
        try:
            texts.append(zlib.decompressobj().decompress(data[stream.end() : end], left))
        except zlib.error:
            continue
        left -= len(texts[-1])
    return texts
