"""Text checks: validates text from users, models and programs, and suggests the nearest name for a typo.

The checks do not change a text.

Invariant: a text that passes `is_text` can be stored in SQLite, written to a file as UTF-8 and
sent to a model.
"""

from __future__ import annotations

from collections.abc import Iterable
from unicodedata import category

from guildhall.core.errors import UsageError

_JOINERS = "\u200c\u200d"  # invisible characters that several scripts and emoji require
# Control, format (such as a change of the text direction), surrogate, private use, line and paragraph separator.
_NOT_IN_A_LINE = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})


def is_unicode(text: str) -> bool:
    """Return True if the text has no lone surrogates, so that it can be encoded."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_text(value: object) -> bool:
    """Return True if the value is a string without NUL and without lone surrogates."""
    return isinstance(value, str) and "\0" not in value and is_unicode(value)


def check_text(
    name: str,
    text: object,
    max_chars: int | None = None,
    *,
    max_bytes: int | None = None,
    allow_empty: bool = False,
    empty_hint: str | None = None,
    long_hint: str | None = None,
) -> str:
    """Return the text. Raise UsageError if the value is not valid text, is blank or is too long."""
    if not isinstance(text, str) or not is_text(text):
        raise UsageError(f"{name}: not text, or contains a NUL or a lone surrogate")
    if not allow_empty and not text.strip():
        raise UsageError(f"{name}: must not be empty", hint=empty_hint)
    if max_chars is not None and len(text) > max_chars:
        raise UsageError(f"{name}: longer than {max_chars:,} characters", hint=long_hint)
    if max_bytes is not None and len(text.encode()) > max_bytes:
        raise UsageError(f"{name}: longer than {max_bytes:,} bytes", hint=long_hint)
    return text


def check_line(name: str, text: object, max_chars: int, *, empty_hint: str | None = None) -> str:
    """Return a single line of text. Raise UsageError if it has line breaks, control characters or hidden characters."""
    line = check_text(name, text, max_chars, empty_hint=empty_hint)
    if any(category(char) in _NOT_IN_A_LINE and char not in _JOINERS for char in line):
        raise UsageError(f"{name}: contains a line break, a control character or an invisible character")
    return line


def format_count(number: int, noun: str) -> str:
    """Return the number and the noun, in the plural unless the number is 1."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most similar to `name`, or None."""
    import difflib

    candidates = sorted(known)
    matches = difflib.get_close_matches(name, candidates, n=1, cutoff=0.6)
    if not matches:
        lowered = {candidate.lower(): candidate for candidate in candidates}
        matches = [lowered[m] for m in difflib.get_close_matches(name.lower(), sorted(lowered), n=1, cutoff=0.6)]
    return matches[0] if matches else None


def suggest_or(name: str, known: Iterable[str], otherwise: str) -> str:
    """Return a hint with the nearest known name, or `otherwise` if no name is similar."""
    guess = nearest(name, known)
    return f"Did you mean {guess!r}?" if guess else otherwise


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """Return a hint for an unknown name: the nearest known name, else the known names. Return None without any."""
    names = sorted(known)
    if guess := nearest(name, names):
        return f"Did you mean {guess!r}?"
    if not names:
        return None
    shown = ", ".join(names[:12]) + (" ..." if len(names) > 12 else "")
    return f"Known: {shown}."
