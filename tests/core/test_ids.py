"""Ids and names: safe to type and to use as file names. Fingerprints depend only on the value."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guildhall.core.ids import ASK, RUN, canonical, digest, fingerprint, is_id, is_name, new_id

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def test_new_ids_have_their_kind_and_are_unique():
    ids = [new_id(RUN) for _ in range(2000)]
    assert len(set(ids)) == len(ids)
    assert all(is_id(name, RUN) and is_name(name) and not is_id(name, ASK) for name in ids)


@pytest.mark.parametrize("text", ["", "r-", "r-short", "r-0000000000", "R-7k2m9x4qpw", "r-7k2m9x4qpw\n", "../7k2m9x4q"])
def test_invalid_ids_are_not_accepted(text: str):
    assert not is_id(text, RUN)


@pytest.mark.parametrize("name", ["a", "evaluator", "pitch-deck_2", "v1.2", "9lives", "A" * 64])
def test_plain_names_are_valid(name: str):
    assert is_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "a..b",
        ".hidden",
        "-flag",
        "a/b",
        "a\\b",
        "a b",
        "a\n",
        "a\x00",
        "ü",
        "é",
        "A" * 65,
        "*",
        "~",
        "$x",
    ],
)
def test_names_that_could_be_paths_flags_or_patterns_are_refused(name: str):
    assert not is_name(name)


@given(st.text())
def test_no_name_leaves_its_folder(name: str):
    if is_name(name):
        assert "/" not in name
        assert name not in {".", ".."}
        assert name.isascii()


@given(VALUES)
def test_canonical_text_represents_the_value(value: object):
    assert json.loads(canonical(value)) == value
    assert canonical(json.loads(canonical(value))) == canonical(value)


def test_a_fingerprint_does_not_depend_on_the_order_of_keys():
    assert fingerprint({"a": 1, "b": [2, 3]}) == fingerprint({"b": [2, 3], "a": 1})
    assert fingerprint({"a": [3, 2]}) != fingerprint({"a": [2, 3]})
    assert fingerprint("x") == digest(b'"x"')
    assert len(fingerprint(None)) == 32


def test_a_lone_surrogate_has_a_fingerprint():
    """Models can send a lone surrogate as a JSON escape."""
    assert fingerprint(json.loads('"\\ud800"')) != fingerprint(json.loads('"\\ud801"'))
