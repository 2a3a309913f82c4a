"""Keys, contents, authors and time stamps."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guildhall.core.errors import UsageError
from guildhall.memory.model import (
    MAX_ENTRY_BYTES,
    PERSON,
    Author,
    EntryInfo,
    check_content,
    check_key,
    check_writable_key,
    is_key,
)

PLAUSIBLE_KEY = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", fullmatch=True)


@given(st.one_of(st.text(), PLAUSIBLE_KEY))
def test_valid_keys_are_safe_file_names_and_all_others_are_rejected(key: str):
    if is_key(key):
        check_key(key)
        assert set(key) <= set(string.ascii_letters + string.digits + "_.-")
        assert key[0] not in "._-"
        assert ".." not in key
        assert len(key) <= 64
        assert not key.endswith(".md")
    else:
        with pytest.raises(UsageError) as caught:
            check_key(key)
        assert caught.value.hint
        assert caught.value.message.isascii(), "an invalid key is escaped in the message"


@pytest.mark.parametrize(
    "key", ["", ".", "..", ".hidden", "a/b", "../x", "/etc/passwd", "a\\b", "a b", "a\n", "ä", "a..b", "x" * 65, "-rf"]
)
def test_keys_that_could_be_paths_are_rejected(key: str):
    with pytest.raises(UsageError, match="invalid memory key"):
        check_key(key)


def test_key_with_file_suffix_is_rejected_with_a_hint():
    with pytest.raises(UsageError) as caught:
        check_key("notes.md")
    assert caught.value.hint == "Leave out .md; it is added to the file name automatically."


@pytest.mark.parametrize("key", ["compacted", "Compacted", "COMPACTED"])
def test_key_of_compaction_can_be_read_but_not_written(key: str):
    check_key(key)
    with pytest.raises(UsageError, match="reserved for compaction"):
        check_writable_key(key)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "empty"),
        (" \n\t", "empty"),
        ("a\0b", "NUL"),
        ("\ud800", "lone surrogate"),
        ("x" * (MAX_ENTRY_BYTES + 1), "100,001 bytes"),
        ("ü" * MAX_ENTRY_BYTES, "200,000 bytes"),
    ],
)
def test_invalid_content_is_rejected_with_the_reason(content: str, reason: str):
    with pytest.raises(UsageError, match=reason) as caught:
        check_content(content)
    assert caught.value.hint


@pytest.mark.parametrize("content", ["x" * MAX_ENTRY_BYTES, "日本語\r\n\t🧑‍🔧"])
def test_any_text_up_to_the_maximum_is_valid_content(content: str):
    check_content(content)


@pytest.mark.parametrize(
    ("mtime_ns", "written_at"),
    [
        (1_700_000_000_000_000_000, "2023-11-14T22:13:20.000Z"),
        (-1, "1970-01-01T00:00:00.000Z"),
        (0, "1970-01-01T00:00:00.000Z"),
        (2**70, "9999-12-31T23:59:59.000Z"),
    ],
)
def test_file_times_out_of_range_are_clamped(mtime_ns: int, written_at: str):
    assert EntryInfo(scope="global", key="a", mtime_ns=mtime_ns, size=1).written_at == written_at


def test_authors_are_named_with_their_run():
    assert str(Author(kind="worker", worker="reviewer", run="r-2222222222")) == "reviewer in r-2222222222"
    assert str(Author(kind="worker", worker="reviewer")) == "reviewer"
    assert str(PERSON) == "you"
