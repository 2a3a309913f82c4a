"""Nearest names: the known name that a misspelt name probably means, and the hint that contains it."""

from __future__ import annotations

import pytest

from guildhall.core.text_checks import did_you_mean, nearest


@pytest.mark.parametrize(
    ("name", "known", "expected"),
    [
        ("reed", ["Read", "Write"], "Read"),
        ("READ", ["Read", "Write"], "Read"),
        ("evaluater", ["evaluator", "reviewer"], "evaluator"),
        ("x", ["evaluator"], None),
        ("", ["a"], None),
        ("a", [], None),
    ],
)
def test_the_nearest_name_is_found_or_none(name: str, known: list[str], expected: str | None):
    assert nearest(name, known) == expected


def test_the_hint_names_the_nearest_or_all_known_names():
    assert "Read" in (did_you_mean("Reed", ["Read", "Write"]) or "")
    assert "Write" not in (did_you_mean("Reed", ["Read", "Write"]) or "")
    listed = did_you_mean("zzz", ["Read", "Write"]) or ""
    assert "Read" in listed
    assert "Write" in listed
    assert did_you_mean("zzz", []) is None
