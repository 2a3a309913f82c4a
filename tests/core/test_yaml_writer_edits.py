"""Edits of YAML that a user wrote."""

from __future__ import annotations

from pathlib import Path

from guildhall.core.yaml_writer import compose, first_reading_as, round_trip

PATH = Path("some.yaml")


def test_the_first_text_with_the_expected_data_is_used() -> None:
    texts = [None, "a: [", "a: 2\n", "a: 1  # kept\n", "a: 1\n"]
    assert first_reading_as({"a": 1}, texts, PATH) == "a: 1  # kept\n"


def test_no_text_is_used_if_none_has_the_expected_data() -> None:
    assert first_reading_as({"a": 1}, ["a: 2\n", "- a\n"], PATH) is None


def test_data_can_be_normalised_before_it_is_compared() -> None:
    assert first_reading_as({"a": {}}, ["a:\n"], PATH, normalise=lambda data: {"a": data["a"] or {}}) == "a:\n"


def test_a_round_trip_keeps_comments_order_and_quotes() -> None:
    text = "# top\nb: 'x'  # why\na: \"y\"\n"
    assert round_trip(text, lambda tree: tree.update({"a": "z"})) == "# top\nb: 'x'  # why\na: \"z\"\n"


def test_an_empty_text_has_no_nodes_and_stays_empty() -> None:
    assert compose(" \n") is None
    assert round_trip("", lambda tree: tree.clear()) == ""
