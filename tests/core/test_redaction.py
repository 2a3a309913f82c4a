"""Redaction: secrets are replaced by their names wherever text is shown or recorded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guildhall.core.redaction import Redactor, Secrets, looks_secret, redact


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OPENAI_API_KEY", "x"),
        ("token", "x"),
        ("DB_PASSWORD", "x"),
        ("AUTHORIZATION", "x"),
        ("X", "sk-abc"),
        ("X", "ghp_abc"),
        ("X", "AKIAABC"),
        ("X", "eyJhbGciOiJIUzI1NiJ9.e30.x"),
    ],
)
def test_secrets_are_detected_by_name_or_value(name: str, value: str):
    assert looks_secret(name, value)


@pytest.mark.parametrize(("name", "value"), [("PATH", "/usr/bin"), ("LANG", "C"), ("X", "eyJx"), ("CUSTOMER", "skip")])
def test_plain_values_are_not_secrets(name: str, value: str):
    assert not looks_secret(name, value)


def test_secret_values_are_replaced_by_their_names():
    redact = Redactor({"API_KEY": "abcdefgh", "OTHER_KEY": "abcdefghij", "PIN_SECRET": "1234", "CITY": "Amsterdam"})
    assert redact("abcdefghij, abcdefgh; 1234 in Amsterdam") == "[OTHER_KEY], [API_KEY]; 1234 in Amsterdam"


def test_without_secrets_nothing_is_replaced():
    assert Redactor({"CITY": "Amsterdam"})("Amsterdam") == "Amsterdam"


@given(st.text(), st.text(min_size=8, alphabet=st.characters(exclude_characters="[]_KEY")), st.text())
def test_no_secret_remains_in_redacted_text(before: str, secret: str, after: str):
    assert secret not in Redactor({"THE_KEY": secret})(f"{before}{secret}{after}").replace("[THE_KEY]", "\0")


def test_known_secrets_are_replaced_from_four_characters_on():
    assert redact("1234 and 123", {"1234": "PIN", "123": "SHORT", "": "EMPTY"}) == "[PIN] and 123"


def test_of_two_known_secrets_the_longer_is_replaced_first():
    """Otherwise the rest of the longer one would remain."""
    assert redact("abcdefgh", {"abcd": "A", "abcdefgh": "B"}) == "[B]"


def test_a_short_value_that_only_looks_secret_is_not_replaced():
    assert Redactor({"TOKENIZERS_PARALLELISM": "false"})("false alarm") == "false alarm"


def test_secrets_of_requests_are_learned():
    secrets = Secrets({"A_KEY": "aaaaaaaa"})
    secrets.add({"B_KEY": "bbbbbbbb", "CITY": "Amsterdam"})
    assert secrets("aaaaaaaa bbbbbbbb Amsterdam") == "[A_KEY] [B_KEY] Amsterdam"
