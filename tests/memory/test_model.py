"""Where memory lies for whom, and what a key and a content may be."""

from __future__ import annotations

import string
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guildhall.core.errors import UsageError
from guildhall.memory.model import MAX_BYTES, Listed, Writer, check_content, check_key, is_key, places
from tests.memory.conftest import worker

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.frame import Frame
    from guildhall.core.paths import Home


def test_global_and_project_are_shared_and_a_worker_s_own_is_not(home: Home, frame: Frame, project: Path):
    one = places(home, worker(project / "workers" / "reviewer.yaml"), frame)
    other = places(home, worker(project / "workers" / "writer.yaml", "writer"), frame)
    assert list(one) == ["global", "project", "worker"]
    assert one["global"] == other["global"]
    assert one["project"] == other["project"]
    assert one["worker"].folder != other["worker"].folder
    assert one["worker"].folder.parent == home.path / "memory" / "workers"
    assert one["worker"].folder.name.startswith("reviewer-")
    assert one["project"].folder.name.startswith("project-")


def test_a_cloned_repository_s_worker_of_the_same_name_is_somebody_else(home: Home, frame: Frame, tmp_path: Path):
    mine = places(home, worker(tmp_path / "mine" / "workers" / "reviewer.yaml"), frame)
    cloned = places(home, worker(tmp_path / "cloned" / "workers" / "reviewer.yaml"), frame)
    at_home = places(home, worker(home.workers / "reviewer.yaml", scope="home"), frame)
    built = places(home, worker(None, scope="given"), frame)
    assert len({found["worker"].folder for found in (mine, cloned, at_home, built)}) == 4
    assert mine["project"] != cloned["project"], "the project is that of the worker's file"
    assert at_home["project"] == built["project"], "without one of its own, that of the caller"


def test_a_worker_stays_itself_when_its_text_changes(home: Home, frame: Frame, project: Path):
    path = project / "workers" / "reviewer.yaml"
    assert places(home, worker(path, "reviewer"), frame) == places(home, worker(path, "renamed"), frame)


def test_a_project_is_the_same_by_every_way_that_leads_there(home: Home, frame: Frame, project: Path, tmp_path: Path):
    (tmp_path / "link").symlink_to(project)
    by_link = type(frame)(cwd=tmp_path / "link", root=tmp_path / "link")
    assert places(home, None, by_link) == places(home, None, frame)
    assert list(places(home, None, frame)) == ["global", "project"]


@pytest.mark.parametrize("name", ["ü b", "...", "a/../b", "-" * 300, "\udcff"])
def test_any_folder_of_the_person_s_gives_a_plain_name(home: Home, tmp_path: Path, frame: Frame, name: str):
    root = tmp_path / name
    found = places(home, None, type(frame)(cwd=root, root=root))["project"].folder
    assert found.parent == home.path / "memory" / "projects"
    assert set(found.name) <= set(string.ascii_letters + string.digits + "-_")
    assert len(found.name) < 80


SAFE = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", fullmatch=True)


@given(st.one_of(st.text(), SAFE))
def test_a_key_that_is_taken_is_a_safe_file_name_and_any_other_is_refused(key: str):
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
        assert caught.value.message.isascii(), "a refused key is shown spelled out"


@pytest.mark.parametrize(
    "key", ["", ".", "..", ".hidden", "a/b", "../x", "/etc/passwd", "a\\b", "a b", "a\n", "ä", "a..b", "x" * 65, "-rf"]
)
def test_keys_that_could_lead_elsewhere_are_refused(key: str):
    with pytest.raises(UsageError, match="cannot be the key"):
        check_key(key)


def test_a_key_with_the_suffix_is_refused_with_what_is_right():
    with pytest.raises(UsageError) as caught:
        check_key("notes.md")
    assert caught.value.hint == "Leave out .md: the file gets it by itself."


@pytest.mark.parametrize("key", ["compacted", "Compacted", "COMPACTED"])
def test_the_key_of_compaction_is_read_and_not_written(key: str):
    check_key(key)
    with pytest.raises(UsageError, match="kept for compaction"):
        check_key(key, writing=True)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "empty"),
        (" \n\t", "empty"),
        ("a\0b", "NUL"),
        ("\ud800", "half characters"),
        ("x" * (MAX_BYTES + 1), "100,001 bytes"),
        ("ü" * MAX_BYTES, "200,000 bytes"),
    ],
)
def test_a_content_that_cannot_be_kept_is_refused_with_the_reason(content: str, reason: str):
    with pytest.raises(UsageError, match=reason) as caught:
        check_content(content)
    assert caught.value.hint


def test_a_content_of_any_language_is_taken_to_the_last_byte():
    assert check_content("x" * MAX_BYTES)
    assert check_content("日本語\r\n\t🧑‍🔧") == "日本語\r\n\t🧑‍🔧".encode()


def test_a_file_may_claim_any_time():
    def told(modified: int) -> str:
        return Listed(scope="global", key="a", modified=modified, size=1).written_at

    assert told(1_700_000_000_000_000_000) == "2023-11-14T22:13:20.000Z"
    assert told(-1) == told(0) == "1970-01-01T00:00:00.000Z"
    assert told(2**70).startswith("9999-12-31")


def test_who_wrote_is_told_in_words():
    assert str(Writer(by="worker", worker="reviewer", run="r-2222222222")) == "reviewer in r-2222222222"
    assert str(Writer(by="worker", worker="reviewer")) == "reviewer"
    assert str(Writer.person()) == "you"
