"""The name that was probably meant is found, and told."""

from __future__ import annotations

import pytest

from guildhall.core.text import did_you_mean, nearest


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


def test_the_hint_names_the_nearest_or_what_there_is():
    assert "Read" in (did_you_mean("Reed", ["Read", "Write"]) or "")
    assert "Write" not in (did_you_mean("Reed", ["Read", "Write"]) or "")
    listed = did_you_mean("zzz", ["Read", "Write"]) or ""
    assert "Read" in listed
    assert "Write" in listed
    assert did_you_mean("zzz", []) is None
