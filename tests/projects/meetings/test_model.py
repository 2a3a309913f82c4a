"""What a meeting may become, and what may be said in one."""

from __future__ import annotations

from itertools import product

import pytest

from guildhall.core.errors import Conflict, UsageError
from guildhall.projects.meetings.model import (
    LONGEST_TOPIC,
    LONGEST_WORDS,
    STATES,
    TRANSITIONS,
    Meeting,
    check_transition,
    checked_topic,
    checked_words,
)
from guildhall.runs.model import DATE, choice_of, date_of

ALLOWED = {("requested", "open"), ("requested", "declined"), ("open", "closed")}


def meeting(status: str) -> Meeting:
    times = {"created_at": "2026-01-01T00:00:00.000Z", "changed_at": "2026-01-01T00:00:00.000Z"}
    return Meeting(id="t-7k2m9x4qpw", project="shop", worker="a", topic="t", status=status, **times)  # pyright: ignore


@pytest.mark.parametrize(("before", "after"), list(product(STATES, STATES)))
def test_every_pair_of_states_is_allowed_or_refused(before: str, after: str) -> None:
    if (before, after) in ALLOWED:
        check_transition(meeting(before), after)  # pyright: ignore
        return
    with pytest.raises(Conflict) as refused:
        check_transition(meeting(before), after)  # pyright: ignore
    assert before in refused.value.message
    assert refused.value.hint


def test_it_comes_into_being_requested_or_open() -> None:
    assert TRANSITIONS[None] == {"requested", "open"}


@pytest.mark.parametrize("words", ["", " \n\t ", "a\0b", "\ud800", "x" * (LONGEST_WORDS + 1), None, 7])
def test_what_cannot_be_said(words: object) -> None:
    with pytest.raises(UsageError):
        checked_words(words)  # pyright: ignore


@pytest.mark.parametrize(
    ("text", "topic"),
    [
        ("Exports", "Exports"),
        ("\n\n  Exports  \nand more", "Exports"),
        ("a\x1b[31mb\u2028c", "a [31mb"),
        ("x" * 5000, "x" * (LONGEST_TOPIC - 3) + "..."),
    ],
)
def test_a_topic_is_one_line_that_can_be_shown(text: str, topic: str) -> None:
    assert checked_topic(text) == topic


def test_a_topic_of_control_characters_is_none() -> None:
    with pytest.raises(UsageError):
        checked_topic("\x1b\x07")


@pytest.mark.parametrize("text", ["2027-01-31", " 2027-01-31 ", "2027-01-31T14:00", "2027-01-31T14:00:00Z"])
def test_a_date_is_a_day_or_a_time(text: str) -> None:
    assert (date_of(text) or "").startswith("2027-01-3")
    assert choice_of(("yes", "no", DATE), text) == date_of(text)


@pytest.mark.parametrize(
    "text", ["", "tomorrow", "2027-02-30", "31.1.2027", "9" * 400, "0001-01-01", "d", "da", "date"]
)
def test_what_is_no_date(text: str) -> None:
    assert choice_of(("yes", "no", DATE), text) is None or text == "0001-01-01"
