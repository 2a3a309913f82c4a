"""The verbs: writing, removing, who did it, and the way back. Nothing that was ever there is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from guildhall.core.errors import Conflict, InvalidFile, NotFound, UsageError
from guildhall.memory.memory import Memory
from guildhall.memory.model import Place
from guildhall.store.engine import Store
from tests.memory.conftest import OTHER, PERSON, WRITER, Moments, everything, put

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.frame import Frame
    from guildhall.core.paths import Home


def test_writing_again_replaces(memory: Memory, place: Place):
    assert memory.write(place, "build", "make", WRITER).content == "make"
    entry = memory.write(place, "build", "make all\r\n", OTHER)
    assert memory.show(place, "build") == entry
    assert everything(place) == {"build.md": b"make all\r\n"}
    listing = memory.ls([place])
    assert [(entry.scope, entry.key, entry.size) for entry in listing.entries] == [("global", "build", 10)]


@pytest.mark.req("X-9")
def test_blame_says_which_run_wrote_what_and_when(memory: Memory, place: Place):
    memory.write(place, "build", "make", WRITER)
    memory.write(place, "build", "make all", OTHER)
    memory.write(place, "other", "x", WRITER)
    blame = memory.blame(place, "build")
    assert [(record.writer.worker, record.writer.run, record.content) for record in blame.records] == [
        ("writer", "r-3333333333", "make all"),
        ("reviewer", "r-2222222222", "make"),
    ]
    assert [record.at for record in blame.records] == ["2026-03-01T12:00:02.000Z", "2026-03-01T12:00:01.000Z"]
    assert not blame.by_hand
    assert blame.verdict == "written by writer in r-3333333333, 2026-03-01T12:00:02.000Z"
    told = blame.as_dict()
    assert told["present"] is True
    assert told["records"][0]["run"] == "r-3333333333"
    assert {key: record.writer.run for key, record in memory.writers(place).items()} == {
        "build": "r-3333333333",
        "other": "r-2222222222",
    }


@pytest.mark.req("X-9")
def test_revert_brings_back_and_is_on_record_itself(memory: Memory, place: Place):
    memory.write(place, "build", "make", WRITER)
    memory.write(place, "build", "rm -rf", OTHER)
    assert memory.revert(place, "build", PERSON).content == "make"
    blame = memory.blame(place, "build")
    assert [(record.action, record.content) for record in blame.records] == [
        ("revert", "make"),
        ("write", "rm -rf"),
        ("write", "make"),
    ]
    assert blame.verdict.startswith("brought back by you")
    assert memory.revert(place, "build", PERSON).content == "rm -rf", "again: the other way"
    assert memory.revert(place, "build", PERSON, to=blame.records[-1].id).content == "make"
    with pytest.raises(UsageError, match="no content number 99") as caught:
        memory.revert(place, "build", PERSON, to=99)
    assert "Known:" in str(caught.value.hint)


def test_a_hand_edit_is_seen_and_kept_before_it_is_replaced(memory: Memory, place: Place):
    memory.write(place, "build", "make", WRITER)
    put(place, "build", "make; by hand", 7)
    blame = memory.blame(place, "build")
    assert blame.by_hand
    assert blame.verdict == (
        "edited by hand (the file is of 2023-11-14T22:13:27.000Z); before that, "
        "written by reviewer in r-2222222222, 2026-03-01T12:00:01.000Z"
    )
    memory.write(place, "build", "make all", OTHER)
    assert [(record.action, record.writer.by, record.content) for record in memory.blame(place, "build").records] == [
        ("write", "worker", "make all"),
        ("edit", "hand", "make; by hand"),
        ("write", "worker", "make"),
    ]
    assert memory.revert(place, "build", PERSON).content == "make; by hand"


def test_a_hand_edit_can_be_reverted_and_that_reverted(memory: Memory, place: Place):
    memory.write(place, "build", "make", WRITER)
    put(place, "build", "\ufeffby hand\r\n")
    assert memory.revert(place, "build", PERSON).content == "make"
    assert memory.revert(place, "build", PERSON).content == "\ufeffby hand\r\n"


def test_what_a_person_made_or_removed_is_told_as_such(memory: Memory, place: Place):
    put(place, "made", "by hand", 1)
    assert memory.blame(place, "made").verdict == "made by hand, 2023-11-14T22:13:21.000Z"
    with pytest.raises(NotFound, match="nothing earlier"):
        memory.revert(place, "made", PERSON)
    with pytest.raises(UsageError) as caught:
        memory.revert(place, "made", PERSON, to=1)
    assert caught.value.hint == "Nothing of this entry is on record."
    memory.write(place, "gone", "x", WRITER)
    (place.folder / "gone.md").unlink()
    assert memory.blame(place, "gone").verdict.startswith("removed by hand; before that, written by reviewer in")
    assert memory.blame(place, "gone").as_dict()["present"] is False
    assert memory.revert(place, "gone", PERSON).content == "x"
    memory.write(place, "back", "one", WRITER)
    memory.write(place, "back", "two", OTHER)
    put(place, "back", "one")
    assert memory.blame(place, "back").verdict.startswith("what is there was written by reviewer in r-2222222222")


def test_what_is_removed_stays_on_record(memory: Memory, place: Place):
    put(place, "notes", "by hand")
    assert memory.rm(place, "notes", PERSON).content == "by hand"
    assert everything(place) == {}
    blame = memory.blame(place, "notes")
    assert [(record.action, record.digest is None) for record in blame.records] == [("remove", True), ("edit", False)]
    assert not blame.by_hand
    assert blame.verdict.startswith("removed by you")
    with pytest.raises(NotFound):
        memory.rm(place, "notes", PERSON)
    assert memory.revert(place, "notes", PERSON).content == "by hand"


def test_the_same_write_twice_is_once(memory: Memory, place: Place):
    first = memory.write(place, "build", "make", WRITER)
    assert memory.write(place, "build", "make", WRITER) == first
    assert len(memory.blame(place, "build").records) == 1
    memory.write(place, "build", "make", OTHER)
    assert len(memory.blame(place, "build").records) == 2, "another run says it again: that is news"
    memory.write(place, "mine", "x", PERSON)
    memory.write(place, "mine", "x", PERSON)
    assert len(memory.blame(place, "mine").records) == 2


def test_a_write_that_was_cut_off_after_its_record_is_finished_by_the_same_write(memory: Memory, place: Place):
    memory.write(place, "build", "old", OTHER)
    memory.write(place, "build", "new", WRITER)
    put(place, "build", "old")  # as it was before the new content was put in its place
    assert memory.write(place, "build", "new", WRITER).content == "new"
    assert [record.content for record in memory.blame(place, "build").records] == ["new", "old"]


@pytest.mark.parametrize("verb", ["write", "rm", "revert"])
def test_what_cannot_be_kept_is_not_replaced(memory: Memory, place: Place, tmp_path: Path, verb: str):
    memory.write(place, "link", "x", WRITER)
    (tmp_path / "precious").write_text("precious")
    (place.folder / "link.md").unlink()
    (place.folder / "link.md").symlink_to(tmp_path / "precious")
    arguments = ("new", WRITER) if verb == "write" else (WRITER,)
    with pytest.raises(InvalidFile, match="it is a link"):
        getattr(memory, verb)(place, "link", *arguments)
    assert (place.folder / "link.md").is_symlink()
    assert (tmp_path / "precious").read_text() == "precious"


def test_keys_are_checked_by_every_verb(memory: Memory, place: Place):
    for verb in (
        lambda key: memory.show(place, key),
        lambda key: memory.blame(place, key),
        lambda key: memory.write(place, key, "x", WRITER),
        lambda key: memory.rm(place, key, WRITER),
        lambda key: memory.revert(place, key, WRITER),
    ):
        with pytest.raises(UsageError, match="cannot be the key"):
            verb("../escape")
    with pytest.raises(UsageError, match="kept for compaction"):
        memory.write(place, "compacted", "x", WRITER)
    for look in (memory.blame, memory.show):
        with pytest.raises(NotFound, match="no entry 'nothing'"):
            look(place, "nothing")
    with pytest.raises(NotFound, match="no entry 'nothing'"):
        memory.revert(place, "nothing", PERSON)
    assert not place.folder.exists() or everything(place) == {}


def test_a_disk_that_refuses_changes_nothing(memory: Memory, place: Place):
    memory.write(place, "build", "make", WRITER)
    (place.folder / ".new").mkdir()
    with pytest.raises(Conflict, match="cannot be changed"):
        memory.write(place, "build", "other", OTHER)
    assert memory.show(place, "build").content == "make"
    assert len(memory.blame(place, "build").records) == 1


def test_looking_needs_no_right_to_write(home: Home, memory: Memory, place: Place):
    memory.write(place, "build", "make", WRITER)
    reading = Store(home.database, readonly=True)
    try:
        looking = Memory(home, reading, Moments())
        assert looking.blame(place, "build").records[0].content == "make"
        assert looking.show(place, "build").content == "make"
        assert looking.select([place], 8_000).entries[0].content == "make"
    finally:
        reading.close()


def test_the_scopes_are_apart(memory: Memory, frame: Frame):
    places = memory.places(None, frame)
    memory.write(places["global"], "a", "for all", WRITER)
    memory.write(places["project"], "a", "for the project", WRITER)
    assert memory.show(places["global"], "a").content == "for all"
    assert [record.content for record in memory.blame(places["project"], "a").records] == ["for the project"]
    assert [entry.scope for entry in memory.ls(places.values()).entries] == ["global", "project"]


def test_writers_at_once_lose_nothing(memory: Memory, place: Place):
    def write(number: int) -> None:
        memory.write(place, f"k{number % 5}", f"content {number}", PERSON)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(100)))
    assert sorted(everything(place)) == [f"k{number}.md" for number in range(5)]
    on_record = {record.content for n in range(5) for record in memory.blame(place, f"k{n}").records}
    assert on_record == {f"content {number}" for number in range(100)}
    for number in range(5):
        assert not memory.blame(place, f"k{number}").by_hand, "what is there is what was written last"


def test_readers_see_whole_contents_only(memory: Memory, place: Place):
    memory.write(place, "k", "a" * 50_000, PERSON)

    def write(number: int) -> None:
        memory.write(place, "k", "ab"[number % 2] * 50_000, PERSON)

    def read(_: int) -> bool:
        return memory.show(place, "k").content in ("a" * 50_000, "b" * 50_000)

    with ThreadPoolExecutor(4) as pool:
        writing = pool.map(write, range(20))
        assert all(pool.map(read, range(200)))
        list(writing)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.tuples(st.sampled_from(["write", "hand", "rm", "delete", "revert"]), st.integers(0, 4))))
def test_every_content_that_was_replaced_can_be_brought_back(memory: Memory, home: Home, steps: list[tuple[str, int]]):
    name = os.urandom(8).hex()
    place = Place(scope="project", folder=home.path / "memory" / "projects" / name, name=f"projects/{name}")
    seen: set[str] = set()
    for step, number in steps:
        there = everything(place).get("k.md")
        content = f"content {number}"
        if step == "write":
            memory.write(place, "k", content, WRITER)
            seen.add(content)
        elif step == "hand" and there is None:
            put(place, "k", content)
        elif step == "rm" and there is not None:
            seen.add(memory.rm(place, "k", PERSON).content)
        elif step == "revert" and seen and there is not None and len(seen | {there.decode()}) > 1:
            before = there.decode()
            seen.add(memory.revert(place, "k", PERSON).content)
            seen.add(before)
            assert memory.show(place, "k").content != before
    if seen:
        for record in memory.blame(place, "k").records:
            if record.content is not None:
                assert memory.revert(place, "k", PERSON, to=record.id).content == record.content
        assert seen <= {record.content for record in memory.blame(place, "k").records}


def test_the_nouns_are_light():
    """Completion and help look at scopes and keys without a database."""
    code = (
        "import sys, guildhall.memory.model, guildhall.memory.shelf;"
        "print(sorted({'sqlalchemy', 'pydantic', 'alembic', 'pydantic_ai'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
