"""A token is compared with the expected one in constant time, whatever a request shows."""

from __future__ import annotations

import pytest

from guildhall.core.tokens import is_same_token


def test_only_the_expected_token_matches():
    assert is_same_token("abc", "abc")


@pytest.mark.parametrize("shown", ["", "ab", "abcd", "ABC", "abc ", "abc\0", "\ud800", "\u00e4", "x" * 100_000])
def test_another_token_does_not(shown: str):
    assert not is_same_token(shown, "abc")


@pytest.mark.parametrize("shown", ["", "abc"])
def test_nothing_matches_a_token_that_is_not_set(shown: str):
    assert not is_same_token(shown, "")
