"""Targets: parsed and displayed as in the two tables of the seed."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guildhall.core.errors import UsageError
from guildhall.workflow.target import Target, check_tag, parse, unknown_target

TABLE = [
    ("alice", "alice@global:main", "alice"),
    ("alice@review", "alice@review:main", "alice@review"),
    ("alice@review:pr-123", "alice@review:pr-123", "alice@review:pr-123"),
    ("@review", "@review:main", "@review"),
    ("@review:pr-123", "@review:pr-123", "@review:pr-123"),
    ("alice@global", "alice@global:main", "alice"),
    ("alice@review:main", "alice@review:main", "alice@review"),
    ("alice@global:dev", "alice@global:dev", "alice@global:dev"),
    ("@global", "@global:main", "@global"),
]


@pytest.mark.req("AW-2")
@pytest.mark.parametrize(("typed", "whole", "shown"), TABLE)
def test_targets_are_parsed_and_displayed_as_in_the_tables(typed: str, whole: str, shown: str):
    target = parse(typed)
    assert (target.full, str(target)) == (whole, shown)


_names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,20}", fullmatch=True)
_targets = st.builds(Target, st.none() | _names, _names | st.just("global"), _names | st.just("main"))


@pytest.mark.req("AW-2")
@given(_targets)
def test_a_displayed_target_is_parsed_to_the_same_target(target: Target):
    assert parse(str(target)) == parse(target.full) == target


@given(st.text(max_size=30))
def test_any_text_is_parsed_or_refused(text: str):
    with contextlib.suppress(UsageError):
        target = parse(text)
        assert parse(str(target)) == target


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("", "empty"),
        ("@", "no workflow after the @"),
        ("alice@", "Did you mean 'alice'?"),
        ("alice@:dev", "Did you mean 'alice@global:dev'?"),
        ("@review:", "Did you mean '@review'?"),
        ("review:pr-1", "Did you mean '@review:pr-1'?"),
        ("a@b@c", "more than one @"),
        ("@a:b:c", "more than one colon"),
        ("alice @review", "Did you mean 'alice@review'?"),
        ("../x@review", "cannot name an agent"),
        ("alice@../x", "cannot name a workflow"),
        ("alice@review:a/b", "cannot name a tag"),
        ("x" * 500, "cannot name an agent"),
        ("a\0b", "cannot name an agent"),
    ],
)
def test_an_invalid_target_is_refused_with_a_suggestion(typed: str, message: str):
    with pytest.raises(UsageError) as caught:
        parse(typed)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 400


def test_an_unknown_target_is_reported_with_the_nearest_name():
    known = [parse("alice@review"), parse("@review:pr-1")]
    assert "Did you mean 'alice@review'?" in str(unknown_target(parse("alcie@review"), known))
    for there in ([], known):  # there can be many targets, so the hint lists none
        assert unknown_target(parse("x"), there).hint == "List the workflows: guild ls --all"


def test_a_tag_must_be_a_name():
    assert check_tag("pr-123") == "pr-123"
    for tag in ("", "a/b", "..", "a b", ".x", "x" * 65):
        with pytest.raises(UsageError):
            check_tag(tag)
