"""Provider keys: the variables of a request replace those of the hall, provider by provider."""

from __future__ import annotations

from guildhall.models.credentials import (
    KEY_VARIABLES,
    SEARCH_VARIABLES,
    URL_VARIABLES,
    forwarded_variables,
    merge_environ,
)
from guildhall.tools.builtin.web_search import _KEYS as OF_SEARCH


def test_variables_of_a_request_replace_all_variables_of_that_provider() -> None:
    own = {
        "ANTHROPIC_API_KEY": "own",
        "ANTHROPIC_BASE_URL": "http://own",
        "OPENAI_API_KEY": "own",
        "GOOGLE_API_KEY": "own",
        "HOME": "/home",
    }
    assert merge_environ(own, {}) == own
    sent = {"ANTHROPIC_API_KEY": "theirs", "GEMINI_API_KEY": "theirs"}
    assert merge_environ(own, sent) == {"OPENAI_API_KEY": "own", "HOME": "/home", **sent}, "no key to another's address"
    assert merge_environ(own, {"OPENAI_BASE_URL": "http://theirs"}).get("OPENAI_API_KEY") is None


def test_the_variables_of_every_provider_are_forwarded() -> None:
    names = forwarded_variables()
    assert {name for several in KEY_VARIABLES.values() for name in several} <= names
    assert set(URL_VARIABLES.values()) <= names
    assert set(SEARCH_VARIABLES) == set(OF_SEARCH.values())
    assert "HOME" not in names
