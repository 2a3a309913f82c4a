"""Memory service: performs every memory operation of a home for workers, the user and the hall.

All methods except `compact` block on the disk and the database, so call them in a thread from asynchronous code.

Does not format output and does not check permissions: commands and the tool gate do.

Invariant: a content is logged before it becomes visible, and an edit by hand is logged before it is replaced. A crash
at any moment loses neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.clock import Clock, stamp
from guildhall.memory import compaction, prompt_block, records
from guildhall.memory.folder import MemoryFolder, memory_folders
from guildhall.memory.model import (
    CHARS_PER_TOKEN,
    Action,
    Author,
    EntryHistory,
    Listing,
    MemoryEntry,
    Scope,
    check_content,
    check_key,
    check_writable_key,
    content_digest,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sqlalchemy import Connection

    from guildhall.core.frame import Frame
    from guildhall.core.paths import Home
    from guildhall.memory.compaction import AskModel, CompactionResult
    from guildhall.store.engine import Store
    from guildhall.workers.model import Worker


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

        Counts bytes, which is fast but more than the characters that `compact` counts: True can be too early, False is
        always right.
        """
        size = sum(size for _, _, size in folder.scan().entries)
        return size > compaction.THRESHOLD_FACTOR * limit_tokens * CHARS_PER_TOKEN

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
        """Compact a folder that exceeds the threshold. See `compaction.compact`."""
        return await compaction.compact(
            folder,
            ask_model,
            limit_tokens=limit_tokens,
            max_note_bytes=max_note_bytes,
            store=self._store,
            clock=self._clock,
        )

    def _replace(self, folder: MemoryFolder, key: str, content: str, author: Author, action: Action) -> MemoryEntry:
        """Draft, log, publish: if a crash prevents publishing, repeating the write publishes without logging again."""
        current = folder.find(key)
        is_logged = self._is_logged(folder, key, content, author, action)
        if is_logged and current is not None and current.content == content:
            return current
        folder.write_draft(content.encode())
        if not is_logged:
            self._log(folder, key, content, author, action, current)
        folder.publish_draft(key)
        return folder.read(key)

    def _is_logged(self, folder: MemoryFolder, key: str, content: str, author: Author, action: Action) -> bool:
        """Return True if the last change in the log is this change, made by this run."""
        if author.run is None:
            return False
        last = self._store.read(lambda connection: records.last_change(connection, folder, key))
        return last is not None and (last.digest, last.author, last.action) == (content_digest(content), author, action)

    def _log(
        self,
        folder: MemoryFolder,
        key: str,
        content: str,
        author: Author,
        action: Action,
        current: MemoryEntry | None,
    ) -> None:
        at = stamp(self._clock.now())

        def add(connection: Connection) -> None:
            if current is not None:
                records.add_manual_edit(connection, folder, current, at)
            records.add_change(connection, folder, key, action, author, at, content)

        self._store.submit(add).result()
