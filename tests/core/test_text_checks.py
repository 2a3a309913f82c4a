"""Text checks: input is validated before it is stored."""

from __future__ import annotations

import pytest

from guildhall.core.errors import UsageError
from guildhall.core.text_checks import check_line, check_text, is_text, is_unicode

HIDDEN_CHARS = ["\n", "\r", "\x1b", "\x85", "\u2028", "\u2029", "\u202e", "\u2066", "\ufeff", "\U000e0041"]
LINES = ["a b", "a\u00a0b", "\u3000x", "\U0001f468\u200d\U0001f4bb", "\u0645\u06cc\u200c\u062e\u0648"]


@pytest.mark.parametrize("value", ["a\0b", "half \ud800", None, 1, b"x", ["x"]])
def test_invalid_text_is_rejected(value: object):
    assert not is_text(value)
    with pytest.raises(UsageError, match="note: not text"):
        check_text("note", value, 100)


def test_a_lone_surrogate_is_not_unicode_and_a_nul_is():
    assert not is_unicode("\udfff")
    assert is_unicode("a\0b")


@pytest.mark.parametrize("value", ["x", " x\n", "\u00e4\u20ac\U0001f600", "\x1b", "\ufeff"])
def test_text_is_returned_as_it_is(value: str):
    assert check_text("note", value, 100) == value


@pytest.mark.parametrize("value", ["", " ", "\n\t", "\u3000"])
def test_a_blank_text_is_refused_unless_it_is_allowed(value: str):
    with pytest.raises(UsageError, match="note: must not be empty") as caught:
        check_text("note", value, empty_hint="Write one.")
    assert caught.value.hint == "Write one."
    assert check_text("note", value, allow_empty=True) == value


def test_a_text_is_limited_by_characters_and_by_bytes():
    assert check_text("note", "\u20ac\u20ac", 2, max_bytes=6)
    with pytest.raises(UsageError, match="longer than 1 characters") as caught:
        check_text("note", "\u20ac\u20ac", 1, long_hint="Shorten it.")
    assert caught.value.hint == "Shorten it."
    with pytest.raises(UsageError, match="longer than 5 bytes"):
        check_text("note", "\u20ac\u20ac", 2, max_bytes=5)


@pytest.mark.parametrize("char", HIDDEN_CHARS)
def test_a_line_with_breaks_or_hidden_characters_is_rejected(char: str):
    with pytest.raises(UsageError, match="title: contains a line break"):
        check_line("title", f"a{char}b", 100)


@pytest.mark.parametrize("line", LINES)
def test_a_line_may_be_in_any_script(line: str):
    assert check_line("title", line, 100) == line
