"""Text of others is shown and obeyed by nobody."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guildhall.cli import screen

ANYTHING = st.text(alphabet=st.characters(exclude_categories=()))
BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


@given(ANYTHING)
def test_nothing_plain_can_steer_a_terminal_or_turn_the_reading_direction(text: str) -> None:
    shown = screen.plain(text)
    assert not [char for char in shown if unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") and char not in "\t\n"]
    assert not set(shown) & set(BIDI)


@given(ANYTHING)
@pytest.mark.req("DO-6")
def test_everything_in_an_approval_can_be_seen(text: str) -> None:
    assert all(char == "\n" or char.isprintable() for char in screen.exact(text))


@given(ANYTHING, st.integers(min_value=0, max_value=200))
def test_every_row_of_an_approval_stands_behind_a_bar(text: str, width: int) -> None:
    rows = screen.barred(text, width).split("\n")
    assert all(row.startswith("  │ ") for row in rows)
    assert "".join(row[4:] for row in rows) == screen.exact(text).replace("\n", "")


def test_a_pipe_gets_whole_lines() -> None:
    assert screen.barred("long " * 50 + "\nshort", None).split("\n") == ["  │ " + "long " * 50, "  │ short"]


def test_wide_characters_count_twice() -> None:
    assert screen.barred("漢" * 10, 20).split("\n") == ["  │ " + "漢" * 8, "  │ " + "漢" * 2]


@given(ANYTHING, st.integers(min_value=1, max_value=100))
def test_one_line_is_one_line(text: str, limit: int) -> None:
    line = screen.one_line(text, limit)
    assert len(line) <= limit
    assert "\n" not in line


@pytest.mark.parametrize(
    ("text", "plain", "exact"),
    [
        ("\x1b[2Jgone", "\\x1b[2Jgone", "\\x1b[2Jgone"),
        ("safe\u202etxt.exe", "safe\\u202etxt.exe", "safe\\u202etxt.exe"),
        ("a\tb\r\nc", "a\tb\nc", "a\\tb\\r\nc"),
        ("over\rwritten", "over\\rwritten", "over\\rwritten"),
        ("no\u200bwidth", "no\u200bwidth", "no\\u200bwidth"),
        ("tag\U000e0041", "tag\U000e0041", "tag\\U000e0041"),
        ("half\udc80", "half\\udc80", "half\\udc80"),
        ("Grüße, 世界 👋", "Grüße, 世界 👋", "Grüße, 世界 👋"),
    ],
)
def test_what_is_spelled_out(text: str, plain: str, exact: str) -> None:
    assert (screen.plain(text), screen.exact(text)) == (plain, exact)


def test_a_cut_line_says_so() -> None:
    assert screen.one_line("one two\nthree", 40) == "one two three"
    assert screen.one_line("x" * 50, 10) == "x" * 9 + "…"
    assert screen.one_line(" " * 50 + "x", 10).endswith("…")
