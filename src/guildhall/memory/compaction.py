"""Compaction: replaces the entries of a folder that exceeds twice the limit by a shorter entry, `compacted`.

Compactions of a folder never overlap. Writers are not blocked while the model answers.

Does not choose the model or pay for it: the caller passes in the model call (`runs.execution.memory_compaction`).

Invariant: no content is lost. Only sources that did not change since they were read are moved to `archive/<time>/`. If
a step fails, all earlier steps are undone. If the process is killed, every content is still in the folder or in its
archive.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from guildhall.core.clock import Clock, stamp
from guildhall.core.errors import InvalidFile, UsageError
from guildhall.memory import records
from guildhall.memory.folder import ARCHIVE, MemoryFolder, write_private_file
from guildhall.memory.model import CHARS_PER_TOKEN, COMPACTED_KEY, COMPACTION, MemoryEntry, Scope, check_content
from guildhall.memory.prompt_block import entry_budget, fits_in_block, quote

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from sqlalchemy import Connection

    from guildhall.store.engine import Store

    AskModel = Callable[[str], Awaitable[str]]  # takes the prompt, returns the answer; one turn without tools

THRESHOLD_FACTOR = 2  # times the limit: a folder that is larger is compacted
BUDGET_USD = 0.05  # per compaction
COMPACTOR_WORKER = "memory-compactor"
_MAX_SOURCE_FACTOR = 4  # times the limit: how much one compaction reads

Status = Literal["compacted", "not_needed", "failed"]


@dataclass(frozen=True, kw_only=True)
class CompactionResult:
    """What a compaction did. `reason` explains to people why it did nothing; `status` is for programs."""

    scope: Scope
    status: Status
    reason: str | None = None
    sources: tuple[str, ...] = ()  # keys of the entries that were replaced
    archive: Path | None = None
    chars_before: int = 0
    chars_after: int = 0

    def __str__(self) -> str:
        if self.status != "compacted":
            return f"{self.scope} memory not compacted: {self.reason}"
        entries = "1 entry" if len(self.sources) == 1 else f"{len(self.sources)} entries"
        sizes = f"{self.chars_before:,} to {self.chars_after:,} characters"
        return f"{self.scope} memory compacted: {entries}, {sizes} (originals: {self.archive})"

    def as_dict(self) -> dict[str, Any]:
        return {
            "scope": self.scope,
            "done": self.status == "compacted",
            "reason": self.reason,
            "sources": list(self.sources),
            "archive": str(self.archive) if self.archive else None,
            "before": self.chars_before,
            "after": self.chars_after,
        }


async def compact(
    folder: MemoryFolder,
    ask_model: AskModel,
    *,
    limit_tokens: int,
    max_note_bytes: int | None = None,
    store: Store,
    clock: Clock,
) -> CompactionResult:
    """Compact a folder if it exceeds the threshold.

    `max_note_bytes` bounds the notes in the prompt, so that the call stays within its budget. Exceptions of `ask_model`
    propagate; the folder is unchanged then.
    """
    with folder.compaction_lock() as is_acquired:
        if not is_acquired:
            return _failure(folder, "another compaction of this scope is running")
        limit_chars = limit_tokens * CHARS_PER_TOKEN
        try:
            sources = await asyncio.to_thread(_read_sources, folder, _MAX_SOURCE_FACTOR * limit_chars)
        except InvalidFile as error:
            return _failure(folder, str(error))
        if _count_chars(sources) <= THRESHOLD_FACTOR * limit_chars:
            reason = f"the scope does not exceed {THRESHOLD_FACTOR} times the limit"
            return CompactionResult(scope=folder.scope, status="not_needed", reason=reason)
        if max_note_bytes is not None:
            sources = _select_affordable(sources, max_note_bytes)
            if not sources:
                reason = f"{BUDGET_USD:.2f} USD pays for {max_note_bytes:,} bytes of notes, and every entry is longer"
                return _failure(folder, reason)
        chars_before = _count_chars(sources)
        max_chars = min(limit_chars // 2, entry_budget(limit_tokens) * 3 // 4, chars_before // 2)
        answer = (await ask_model(_render_prompt(sources, max_chars))).strip()
        if problem := _find_problem(answer, chars_before, limit_tokens):
            return _failure(folder, problem, chars_before)
        return await asyncio.to_thread(_replace_sources, folder, sources, answer, store, clock)


def _failure(folder: MemoryFolder, reason: str, chars_before: int = 0) -> CompactionResult:
    return CompactionResult(scope=folder.scope, status="failed", reason=reason, chars_before=chars_before)


def _count_chars(entries: Sequence[MemoryEntry]) -> int:
    return sum(len(entry.content) for entry in entries)


def _read_sources(folder: MemoryFolder, max_chars: int) -> list[MemoryEntry]:
    """Return the previous result of compaction and the oldest entries. Raise InvalidFile if that result is invalid."""
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
    """Return the sources that fit into the prompt, leaving out entries that are too long."""
    chosen: list[MemoryEntry] = []
    for source in sources:
        size = len(_render_note(source).encode()) + 2
        if size <= max_bytes:
            chosen.append(source)
            max_bytes -= size
    return chosen


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
        return f"unusable answer of the model: {error.message}"
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
        if not _is_result_unchanged(folder, previous):
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


def _is_result_unchanged(folder: MemoryFolder, previous: MemoryEntry | None) -> bool:
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
    """Create a new folder. Two compactions can have the same time stamp."""
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
