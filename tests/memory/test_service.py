"""Writing, removing, history and revert. No content is ever lost."""

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
from guildhall.memory.folder import MemoryFolder
from guildhall.memory.model import PERSON
from guildhall.memory.service import Memory
from guildhall.store.engine import Store
from tests.memory.conftest import CODER, REVIEWER, TickingClock, edit_by_hand, read_files

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.paths import Home
    from guildhall.core.request_frame import Frame


def test_write_replaces_an_existing_entry(memory: Memory, folder: MemoryFolder):
    assert memory.write(folder, "build", "make", REVIEWER).content == "make"
    entry = memory.write(folder, "build", "make all\r\n", CODER)
    assert memory.read(folder, "build") == entry
    assert read_files(folder) == {"build.md": b"make all\r\n"}
    listing = memory.list_entries([folder])
    assert [(entry.scope, entry.key, entry.size) for entry in listing.entries] == [("global", "build", 10)]


@pytest.mark.req("X-9")
def test_history_names_run_time_and_content_of_each_change(memory: Memory, folder: MemoryFolder):
    memory.write(folder, "build", "make", REVIEWER)
    memory.write(folder, "build", "make all", CODER)
    memory.write(folder, "other", "x", REVIEWER)
    history = memory.history(folder, "build")
    assert [(change.author, change.at, change.content) for change in history.changes] == [
        (CODER, "2026-03-01T12:00:02.000Z", "make all"),
        (REVIEWER, "2026-03-01T12:00:01.000Z", "make"),
    ]
    assert not history.is_changed_by_hand
    assert history.summary == "written by coder in r-3333333333, 2026-03-01T12:00:02.000Z"
    as_json = history.as_dict()
    assert as_json["present"] is True
    assert as_json["records"][0]["run"] == "r-3333333333"


@pytest.mark.req("X-9")
def test_revert_restores_the_previous_content_and_is_logged(memory: Memory, folder: MemoryFolder):
    memory.write(folder, "build", "make", REVIEWER)
    memory.write(folder, "build", "rm -rf", CODER)
    assert memory.revert(folder, "build", PERSON).content == "make"
    history = memory.history(folder, "build")
    assert [(change.action, change.content) for change in history.changes] == [
        ("revert", "make"),
        ("write", "rm -rf"),
        ("write", "make"),
    ]
    assert history.summary.startswith("restored by you")
    assert memory.revert(folder, "build", PERSON).content == "rm -rf", "a second revert undoes the first"
    first_change = history.changes[-1].id
    assert memory.revert(folder, "build", PERSON, change_id=first_change).content == "make"


def test_revert_to_an_unknown_change_lists_the_known_ones(memory: Memory, folder: MemoryFolder):
    memory.write(folder, "build", "make", REVIEWER)
    with pytest.raises(UsageError, match="cannot revert global/build: change 99 is unknown") as caught:
        memory.revert(folder, "build", PERSON, change_id=99)
    assert caught.value.hint == "Changes with a content: 1."


def test_edit_by_hand_is_detected_and_logged_before_it_is_replaced(memory: Memory, folder: MemoryFolder):
    memory.write(folder, "build", "make", REVIEWER)
    edit_by_hand(folder, "build", "make; by hand", 7)
    history = memory.history(folder, "build")
    assert history.is_changed_by_hand
    assert history.summary == (
        "edited by hand, 2023-11-14T22:13:27.000Z; "
        "last logged change: written by reviewer in r-2222222222, 2026-03-01T12:00:01.000Z"
    )
    memory.write(folder, "build", "make all", CODER)
    changes = memory.history(folder, "build").changes
    assert [(change.action, change.author.kind, change.content) for change in changes] == [
        ("write", "worker", "make all"),
        ("edit", "hand", "make; by hand"),
        ("write", "worker", "make"),
    ]
    assert memory.revert(folder, "build", PERSON).content == "make; by hand"


def test_edit_by_hand_survives_revert(memory: Memory, folder: MemoryFolder):
    memory.write(folder, "build", "make", REVIEWER)
    edit_by_hand(folder, "build", "\ufeffby hand\r\n")
    assert memory.revert(folder, "build", PERSON).content == "make"
    assert memory.revert(folder, "build", PERSON).content == "\ufeffby hand\r\n"


def test_entry_created_by_hand_has_no_earlier_content(memory: Memory, folder: MemoryFolder):
    edit_by_hand(folder, "made", "by hand", 1)
    assert memory.history(folder, "made").summary == "created by hand, 2023-11-14T22:13:21.000Z"
    with pytest.raises(NotFound, match="cannot revert global/made"):
        memory.revert(folder, "made", PERSON)
    with pytest.raises(UsageError) as caught:
        memory.revert(folder, "made", PERSON, change_id=1)
    assert caught.value.hint == "The log has no content of this entry."


def test_entry_deleted_by_hand_can_be_restored(memory: Memory, folder: MemoryFolder):
    memory.write(folder, "gone", "x", REVIEWER)
    folder.delete("gone")
    history = memory.history(folder, "gone")
    assert history.summary.startswith("deleted by hand; last logged change: written by reviewer in")
    assert history.as_dict()["present"] is False
    assert memory.revert(folder, "gone", PERSON).content == "x"


def test_summary_recognises_an_old_content_restored_by_hand(memory: Memory, folder: MemoryFolder):
    memory.write(folder, "back", "one", REVIEWER)
    memory.write(folder, "back", "two", CODER)
    edit_by_hand(folder, "back", "one")
    summary = memory.history(folder, "back").summary
    assert summary.startswith("restored by hand to the content written by reviewer in r-2222222222")


def test_removed_entry_can_be_restored(memory: Memory, folder: MemoryFolder):
    edit_by_hand(folder, "notes", "by hand")
    assert memory.remove(folder, "notes", PERSON).content == "by hand"
    assert read_files(folder) == {}
    history = memory.history(folder, "notes")
    assert [(change.action, change.content) for change in history.changes] == [("remove", None), ("edit", "by hand")]
    assert not history.is_changed_by_hand
    assert history.summary.startswith("removed by you")
    with pytest.raises(NotFound):
        memory.remove(folder, "notes", PERSON)
    assert memory.revert(folder, "notes", PERSON).content == "by hand"


def test_repeated_write_of_a_run_is_logged_once(memory: Memory, folder: MemoryFolder):
    first = memory.write(folder, "build", "make", REVIEWER)
    assert memory.write(folder, "build", "make", REVIEWER) == first
    assert len(memory.history(folder, "build").changes) == 1
    memory.write(folder, "build", "make", CODER)
    assert len(memory.history(folder, "build").changes) == 2, "another run is another change"


def test_repeated_write_of_the_user_is_logged_twice(memory: Memory, folder: MemoryFolder):
    memory.write(folder, "build", "make", PERSON)
    memory.write(folder, "build", "make", PERSON)
    assert len(memory.history(folder, "build").changes) == 2


def test_repeated_write_completes_a_write_that_was_killed_after_logging(memory: Memory, folder: MemoryFolder):
    memory.write(folder, "build", "old", CODER)
    memory.write(folder, "build", "new", REVIEWER)
    edit_by_hand(folder, "build", "old")  # the state before the draft was published
    assert memory.write(folder, "build", "new", REVIEWER).content == "new"
    assert [change.content for change in memory.history(folder, "build").changes] == ["new", "old"]


@pytest.mark.parametrize("method", ["write", "remove", "revert"])
def test_symbolic_link_is_never_replaced(memory: Memory, folder: MemoryFolder, tmp_path: Path, method: str):
    memory.write(folder, "link", "x", REVIEWER)
    (tmp_path / "precious").write_text("precious")
    folder.delete("link")
    folder.entry_path("link").symlink_to(tmp_path / "precious")
    arguments = ("new", REVIEWER) if method == "write" else (REVIEWER,)
    with pytest.raises(InvalidFile, match="a symbolic link"):
        getattr(memory, method)(folder, "link", *arguments)
    assert folder.entry_path("link").is_symlink()
    assert (tmp_path / "precious").read_text() == "precious"


def test_every_method_checks_the_key(memory: Memory, folder: MemoryFolder):
    for method in (
        lambda key: memory.read(folder, key),
        lambda key: memory.history(folder, key),
        lambda key: memory.write(folder, key, "x", REVIEWER),
        lambda key: memory.remove(folder, key, REVIEWER),
        lambda key: memory.revert(folder, key, REVIEWER),
    ):
        with pytest.raises(UsageError, match="invalid memory key"):
            method("../escape")
    with pytest.raises(UsageError, match="reserved for compaction"):
        memory.write(folder, "compacted", "x", REVIEWER)
    assert not folder.path.exists()


def test_unknown_entry_is_not_found(memory: Memory, folder: MemoryFolder):
    for method in (memory.read, memory.history):
        with pytest.raises(NotFound, match="unknown memory entry 'global/nothing'"):
            method(folder, "nothing")
    with pytest.raises(NotFound, match="unknown memory entry 'global/nothing'"):
        memory.revert(folder, "nothing", PERSON)


def test_failed_write_changes_nothing(memory: Memory, folder: MemoryFolder):
    memory.write(folder, "build", "make", REVIEWER)
    (folder.path / ".new").mkdir()
    with pytest.raises(Conflict, match="cannot change the memory folder"):
        memory.write(folder, "build", "other", CODER)
    assert memory.read(folder, "build").content == "make"
    assert len(memory.history(folder, "build").changes) == 1


def test_reading_works_with_a_read_only_store(home: Home, memory: Memory, folder: MemoryFolder):
    memory.write(folder, "build", "make", REVIEWER)
    store = Store(home.database, readonly=True)
    try:
        reader = Memory(home, store, TickingClock())
        assert reader.history(folder, "build").changes[0].content == "make"
        assert reader.read(folder, "build").content == "make"
        assert "| make" in reader.prompt_block([folder], 8_000)
    finally:
        store.close()


def test_scopes_are_independent(memory: Memory, frame: Frame):
    folders = memory.folders(None, frame)
    memory.write(folders["global"], "a", "for all", REVIEWER)
    memory.write(folders["project"], "a", "for the project", REVIEWER)
    assert memory.read(folders["global"], "a").content == "for all"
    assert [change.content for change in memory.history(folders["project"], "a").changes] == ["for the project"]
    assert [entry.scope for entry in memory.list_entries(folders.values()).entries] == ["global", "project"]


def test_concurrent_writers_lose_nothing(memory: Memory, folder: MemoryFolder):
    def write(number: int) -> None:
        memory.write(folder, f"k{number % 5}", f"content {number}", PERSON)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(100)))
    assert sorted(read_files(folder)) == [f"k{number}.md" for number in range(5)]
    histories = [memory.history(folder, f"k{number}") for number in range(5)]
    logged = {change.content for history in histories for change in history.changes}
    assert logged == {f"content {number}" for number in range(100)}
    assert not any(history.is_changed_by_hand for history in histories), "each file has the last logged content"


def test_readers_never_see_half_an_entry(memory: Memory, folder: MemoryFolder):
    memory.write(folder, "k", "a" * 50_000, PERSON)

    def write(number: int) -> None:
        memory.write(folder, "k", "ab"[number % 2] * 50_000, PERSON)

    def read(_: int) -> bool:
        return memory.read(folder, "k").content in ("a" * 50_000, "b" * 50_000)

    with ThreadPoolExecutor(4) as pool:
        writes = pool.map(write, range(20))
        assert all(pool.map(read, range(200)))
        list(writes)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.tuples(st.sampled_from(["write", "edit", "remove", "revert"]), st.integers(0, 4))))
def test_every_replaced_content_can_be_restored(memory: Memory, home: Home, steps: list[tuple[str, int]]):
    name = os.urandom(8).hex()
    folder = MemoryFolder(scope="project", path=home.path / "memory" / "projects" / name, name=f"projects/{name}")
    replaced: set[str] = set()
    for step, number in steps:
        entry = folder.find("k")
        content = f"content {number}"
        if step == "write":
            memory.write(folder, "k", content, REVIEWER)
            replaced.add(content)
        elif step == "edit" and entry is None:
            edit_by_hand(folder, "k", content)
        elif step == "remove" and entry is not None:
            replaced.add(memory.remove(folder, "k", PERSON).content)
        elif step == "revert" and entry is not None and replaced - {entry.content}:
            replaced |= {memory.revert(folder, "k", PERSON).content, entry.content}
            assert memory.read(folder, "k").content != entry.content
    if replaced:
        for change in memory.history(folder, "k").changes:
            if change.content is not None:
                assert memory.revert(folder, "k", PERSON, change_id=change.id).content == change.content
        assert replaced <= {change.content for change in memory.history(folder, "k").changes}


def test_data_types_import_nothing_heavy():
    """The command line imports them for help and completion."""
    code = (
        "import sys, guildhall.memory.model, guildhall.memory.folder;"
        "print(sorted({'sqlalchemy', 'pydantic', 'pydantic_ai'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
