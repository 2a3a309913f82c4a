"""Text of others, made safe to look at: nothing in it can move the cursor, turn the reading direction or hide.

Two degrees. `plain` is for output and progress: it takes away what a terminal would obey and leaves what languages
need. `exact` is for what a person approves: every character that is not plainly visible is spelled out.
"""

from __future__ import annotations

import re
import unicodedata

# Control characters but for tab and newline, marks that turn the reading direction, line separators, half characters.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def plain(text: str) -> str:
    """The text with everything spelled out that a terminal or a reader's eye would obey."""
    return _OBEYED.sub(lambda found: _spelled(found[0]), text.replace("\r\n", "\n"))


def exact(text: str) -> str:
    """The text with every character spelled out that is not plainly visible; newlines stay."""
    return "".join(char if char == "\n" or char.isprintable() else _spelled(char) for char in text)


def one_line(text: str, limit: int) -> str:
    """The text on one line, at most `limit` characters of it."""
    joined = " ".join(plain(text[: limit * 4]).split())
    return joined if len(joined) <= limit and len(text) <= limit * 4 else joined[: max(limit - 1, 0)] + "…"


def barred(text: str, width: int | None) -> str:
    """The text exactly, each row behind a bar, so that none of it can pass for something that we say.

    Without a width rows are as long as the lines: a pipe wraps nothing.
    """
    rows: list[str] = []
    for line in exact(text).split("\n"):
        rows.extend([line] if width is None else _wrapped(line, max(width - 4, 16)))
    return "\n".join(f"  │ {row}" for row in rows)


def _spelled(char: str) -> str:
    point = ord(char)
    if point < 0x100:
        return {"\t": "\\t", "\r": "\\r"}.get(char, f"\\x{point:02x}")
    return f"\\u{point:04x}" if point < 0x10000 else f"\\U{point:08x}"


def _wrapped(line: str, width: int) -> list[str]:
    rows: list[str] = []
    row, used = "", 0
    for char in line:
        cells = 2 if unicodedata.east_asian_width(char) in "WF" else 1
        if used + cells > width:
            rows.append(row)
            row, used = "", 0
        row += char
        used += cells
    return [*rows, row]
