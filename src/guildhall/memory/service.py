"""Memory service: performs every memory operation of a home for workers, the user and the hall.

A compaction replaces the entries of a folder that exceeds twice the limit by a shorter entry, `compacted`. Compactions
of a folder never overlap, and writers are not blocked while the model answers. All methods except `compact` block on
the disk and the database, so call them in a thread from asynchronous code.

Does not format output and does not check permissions: commands and the tool gate do. Does not choose the model of a
compaction or pay for it: the caller passes in the model call (`runs.execution.memory_compaction`).

Invariant: no content is lost, even if the process is killed. A content is logged before it becomes visible, and an edit
by hand is logged before it is replaced. A compaction archives only sources that did not change since they were read,
and if a step fails, it undoes all earlier steps.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from guildhall.core.clock import Clock, stamp
from guildhall.core.errors import InvalidFile, UsageError
from guildhall.memory import prompt_block, records
from guildhall.memory.folder import ARCHIVE, MemoryFolder, memory_folders, write_private_file
from guildhall.memory.model import (
    CHARS_PER_TOKEN,
    COMPACTED_KEY,
    COMPACTION,
    COMPACTION_BUDGET_USD,
    Action,
    Author,
    CompactionResult,
    EntryHistory,
    Listing,
    MemoryEntry,
    Scope,
    check_content,
    check_key,
    check_writable_key,
    content_digest,
)
from guildhall.memory.prompt_block import entry_budget, fits_in_block, quote

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy import Connection

    from guildhall.core.paths import Home
    from guildhall.core.request_frame import Frame
    from guildhall.store.engine import Store
    from guildhall.workers.model import Worker

    AskModel = Callable[[str], Awaitable[str]]  # takes the prompt, returns the answer; one turn without tools

_THRESHOLD_FACTOR = 2  # times the limit: a folder that is larger is compacted
_MAX_SOURCE_FACTOR = 4  # times the limit: how much one compaction reads


class Memory:
    """All memory folders of a home and their log. Reading works with a read-only store."""

    def __init__(self, home: Home, store: Store, clock: Clock) -> None:
        self._home = home
        self._store = store
        self._clock = clock

    def folders(self, worker: Worker | None, frame: Frame) -> Mapping[Scope, MemoryFolder]:
        """Return the folders that a worker may use, or the shared ones if no worker is given."""
        return memory_folders(self._home, worker, frame)

    # Reading

    def list_entries(self, folders: Iterable[MemoryFolder]) -> Listing:
        """List the entries folder by folder, newest first."""
        listings = [folder.list_entries() for folder in folders]
        return Listing(
            entries=tuple(entry for listing in listings for entry in listing.entries),
            skipped=tuple(file for listing in listings for file in listing.skipped),
        )

    def read(self, folder: MemoryFolder, key: str) -> MemoryEntry:
        check_key(key)
        return folder.read(key)

    def history(self, folder: MemoryFolder, key: str) -> EntryHistory:
        """Return an entry with all its logged changes. Raise NotFound if it never existed."""
        check_key(key)
        entry = folder.find(key)
        changes = self._store.read(lambda connection: records.list_changes(connection, folder, key))
        if entry is None and not changes:
            raise folder.not_found_error(key)
        return EntryHistory(scope=folder.scope, key=key, folder=folder.path, entry=entry, changes=tuple(changes))

    def prompt_block(self, folders: Iterable[MemoryFolder], limit_tokens: int) -> str:
        """Return the memory block of a prompt, or an empty string if the folders are empty."""
        return prompt_block.render_block(prompt_block.select_entries(folders, limit_tokens))

    def is_compaction_due(self, folder: MemoryFolder, limit_tokens: int) -> bool:
        """Return True if a folder may exceed the compaction threshold.

        Counts bytes, which are never fewer than the characters that `compact` counts: True can be too early, False is
        always right.
        """
        total_bytes = sum(size for _, _, size in folder.scan().entries)
        return total_bytes > _THRESHOLD_FACTOR * limit_tokens * CHARS_PER_TOKEN

    # Writing

    def write(self, folder: MemoryFolder, key: str, content: str, author: Author) -> MemoryEntry:
        """Create or replace an entry. Repeating the last write of the same run changes nothing."""
        check_writable_key(key)
        check_content(content)
        with folder.lock():
            return self._replace(folder, key, content, author, "write")

    def remove(self, folder: MemoryFolder, key: str, author: Author) -> MemoryEntry:
        """Remove an entry and return it. Its content stays in the log."""
        check_key(key)
        with folder.lock():
            entry = folder.read(key)
            at = stamp(self._clock.now())
            self._store.submit(lambda connection: records.add_manual_edit(connection, folder, entry, at)).result()
            folder.delete(key)
            self._store.submit(
                lambda connection: records.add_change(connection, folder, key, "remove", author, at)
            ).result()
            return entry

    def revert(self, folder: MemoryFolder, key: str, author: Author, *, change_id: int | None = None) -> MemoryEntry:
        """Restore the content of a change, or the last content that differs from the current content."""
        check_key(key)
        with folder.lock():
            content = self.history(folder, key).content_to_restore(change_id)
            return self._replace(folder, key, content, author, "revert")

    async def compact(
        self, folder: MemoryFolder, ask_model: AskModel, *, limit_tokens: int, max_note_bytes: int | None = None
    ) -> CompactionResult:
        """Compact a folder if it exceeds the threshold.

        `max_note_bytes` bounds the notes in the prompt, so that the call stays within its budget. Exceptions of
        `ask_model` propagate; the folder is unchanged then.
        """
        with folder.compaction_lock() as is_acquired:
            if not is_acquired:
                return _failure(folder, "another compaction of this scope is running")
            limit_chars = limit_tokens * CHARS_PER_TOKEN
            try:
                sources = await asyncio.to_thread(_read_sources, folder, _MAX_SOURCE_FACTOR * limit_chars)
            except InvalidFile as error:
                return _failure(folder, str(error))
            if _count_chars(sources) <= _THRESHOLD_FACTOR * limit_chars:
                reason = f"the scope does not exceed {_THRESHOLD_FACTOR} times the limit"
                return CompactionResult(scope=folder.scope, status="not_needed", reason=reason)
            if max_note_bytes is not None:
                sources = _select_affordable(sources, max_note_bytes)
                if not sources:
                    limit = f"the budget of {COMPACTION_BUDGET_USD:.2f} USD pays for {max_note_bytes:,} bytes of notes"
                    return _failure(folder, f"{limit}, and every entry is longer")
            chars_before = _count_chars(sources)
            max_chars = min(limit_chars // 2, entry_budget(limit_tokens) * 3 // 4, chars_before // 2)
            answer = (await ask_model(_render_prompt(sources, max_chars))).strip()
            if problem := _find_problem(answer, chars_before, limit_tokens):
                return _failure(folder, problem, chars_before)
            return await asyncio.to_thread(_replace_sources, folder, sources, answer, self._store, self._clock)

    def _replace(self, folder: MemoryFolder, key: str, content: str, author: Author, action: Action) -> MemoryEntry:
        """Draft, log, publish: if a crash prevents publishing, repeating the write publishes without logging again."""
        current = folder.find(key)
        is_logged = self._is_logged(folder, key, content, author, action)
        if is_logged and current is not None and current.content == content:
            return current
        folder.write_draft(content.encode())
        if not is_logged:
            at = stamp(self._clock.now())

            def log(connection: Connection) -> None:
                if current is not None:
                    records.add_manual_edit(connection, folder, current, at)
                records.add_change(connection, folder, key, action, author, at, content)

            self._store.submit(log).result()
        folder.publish_draft(key)
        return folder.read(key)

    def _is_logged(self, folder: MemoryFolder, key: str, content: str, author: Author, action: Action) -> bool:
        """Return True if the last change in the log is this change, made by this run."""
        if author.run is None:
            return False
        changes = self._store.read(lambda connection: records.list_changes(connection, folder, key, limit=1))
        digest = content_digest(content)
        return any((last.digest, last.author, last.action) == (digest, author, action) for last in changes)


def _failure(folder: MemoryFolder, reason: str, chars_before: int = 0) -> CompactionResult:
    return CompactionResult(scope=folder.scope, status="failed", reason=reason, chars_before=chars_before)


def _count_chars(entries: Sequence[MemoryEntry]) -> int:
    return sum(len(entry.content) for entry in entries)


def _read_sources(folder: MemoryFolder, max_chars: int) -> list[MemoryEntry]:
    """Return the compacted entry, if it exists, and the oldest entries. Raise InvalidFile if that entry is invalid."""
    previous = folder.find(COMPACTED_KEY)
    sources = [previous] if previous else []
    total = _count_chars(sources)
    for _, key, _ in sorted(folder.scan().entries, reverse=True):
        if total > max_chars:
            break
        entry = folder.load(key) if key != COMPACTED_KEY else None
        if isinstance(entry, MemoryEntry):  # invalid files stay where they are
            sources.append(entry)
            total += len(entry.content)
    return sources


def _select_affordable(sources: list[MemoryEntry], max_bytes: int) -> list[MemoryEntry]:
    """Return the sources that fit into the prompt together. Skip each source that does not fit."""
    selected: list[MemoryEntry] = []
    for source in sources:
        size_bytes = len(_render_note(source).encode()) + 2  # with the empty line between notes
        if size_bytes <= max_bytes:
            selected.append(source)
            max_bytes -= size_bytes
    return selected


def _render_prompt(sources: list[MemoryEntry], max_chars: int) -> str:
    task = f"Condense the following notes, oldest first, into at most {max_chars:,} characters."
    return "\n\n".join((task, *map(_render_note, sources)))


def _render_note(source: MemoryEntry) -> str:
    return f"{source.key}\n{quote(source.content)}"


def _find_problem(answer: str, chars_before: int, limit_tokens: int) -> str | None:
    """Return why the answer cannot replace the sources, or None if it can."""
    try:
        check_content(answer)
    except UsageError as error:
        return f"the model's answer is not usable: {error.message}"
    if len(answer) >= chars_before:
        return f"the model's answer is not shorter ({len(answer):,} characters for {chars_before:,})"
    if not fits_in_block(COMPACTED_KEY, answer, limit_tokens):
        return f"the model's answer does not fit into a prompt ({len(answer):,} characters)"
    return None


def _replace_sources(
    folder: MemoryFolder, sources: list[MemoryEntry], answer: str, store: Store, clock: Clock
) -> CompactionResult:
    """Publish the answer and archive the sources that did not change meanwhile. Undo everything if a step fails."""
    chars_before = _count_chars(sources)
    previous = next((source for source in sources if source.key == COMPACTED_KEY), None)
    with folder.lock(), ExitStack() as undo:
        if not _is_compacted_unchanged(folder, previous):
            return _failure(folder, f"{COMPACTED_KEY} was changed meanwhile", chars_before)
        replaced = [source for source in sources if source is not previous and folder.is_unchanged(source)]
        at = stamp(clock.now())

        def log_edits(connection: Connection) -> None:
            for source in sources:
                records.add_manual_edit(connection, folder, source, at)

        def log_compaction(connection: Connection) -> None:
            for source in replaced:
                records.add_change(connection, folder, source.key, "compact", COMPACTION, at)
            records.add_change(connection, folder, COMPACTED_KEY, "compact", COMPACTION, at, answer)

        store.submit(log_edits).result()
        archive = _create_archive(folder.path / ARCHIVE, at.replace(":", ""))
        undo.callback(archive.rmdir)
        # As old as its newest source: a compaction must not push newer entries out of the prompt.
        folder.write_draft(answer.encode(), max(source.mtime_ns for source in sources))
        _publish_compacted(folder, previous, archive, undo)
        for source in replaced:
            path = folder.entry_path(source.key)
            path.rename(archive / path.name)
            undo.callback(_move_back, archive / path.name, path)
        store.submit(log_compaction).result()
        undo.pop_all()
    return CompactionResult(
        scope=folder.scope,
        status="compacted",
        sources=(*([COMPACTED_KEY] if previous else []), *(source.key for source in replaced)),
        archive=archive,
        chars_before=chars_before,
        chars_after=len(answer),
    )


def _is_compacted_unchanged(folder: MemoryFolder, previous: MemoryEntry | None) -> bool:
    """Return True if the compacted entry is as it was read, or still does not exist."""
    if previous is None:
        return not os.path.lexists(folder.entry_path(COMPACTED_KEY))
    return folder.is_unchanged(previous)


def _publish_compacted(folder: MemoryFolder, previous: MemoryEntry | None, archive: Path, undo: ExitStack) -> None:
    path = folder.entry_path(COMPACTED_KEY)
    if previous is None:
        folder.publish_draft(COMPACTED_KEY)
        undo.callback(path.unlink)
        return
    copy = archive / path.name
    write_private_file(copy, previous.content.encode(), previous.mtime_ns)
    undo.callback(copy.replace, path)
    folder.publish_draft(COMPACTED_KEY)


def _create_archive(parent: Path, name: str) -> Path:
    """Create a new folder. A number makes its name unique, because two compactions can have the same time stamp."""
    parent.mkdir(mode=0o700, exist_ok=True)
    number = 1
    while True:
        archive = parent / (name if number == 1 else f"{name}-{number}")
        try:
            archive.mkdir(mode=0o700)
        except FileExistsError:
            number += 1
        else:
            return archive


def _move_back(source: Path, target: Path) -> None:
    """Undo a move, unless there is a new file at the target: then both are kept."""
    if not os.path.lexists(target):
        source.rename(target)
