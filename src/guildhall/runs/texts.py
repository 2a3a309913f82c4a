"""Text that a person or a model hands in: whether it can be kept, and is not too much."""

from __future__ import annotations

from unicodedata import category

from guildhall.core.errors import UsageError
from guildhall.runs.model import is_text


def check_text(name: str, text: object, most: int, *, empty: str | None = None, long: str | None = None) -> str:
    """The text, if it is one that says something. `empty` and `long` are what to do where it says none, or too much."""
    if not isinstance(text, str) or not is_text(text):
        raise UsageError(f"{name}: expected text without NUL or half characters")
    if not text.strip():
        raise UsageError(f"{name}: it is empty", hint=empty)
    if len(text) > most:
        raise UsageError(f"{name}: it is longer than {most:,} characters", hint=long)
    return text


def check_line(name: str, text: object, most: int, *, empty: str | None = None) -> str:
    """The same for what is shown on one line."""
    line = check_text(name, text, most, empty=empty)
    if any(category(char) in ("Cc", "Zl", "Zp") for char in line):
        raise UsageError(f"{name}: there are line breaks or control characters in it", hint="It is one line.")
    return line
