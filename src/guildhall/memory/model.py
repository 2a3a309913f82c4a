"""Memory model: defines the data types (scopes, entries, changes, results) and checks keys and contents.

Imports only light modules, because the command line imports this module for help and completion.

Does no I/O: `memory.folder` accesses the files, `memory.records` the log.

Invariant: a valid key is a safe file name. Code that turns a key into a path must have called `check_key`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from guildhall.core.clock import stamp
from guildhall.core.errors import NotFound, UsageError
from guildhall.core.ids import digest, is_name

if TYPE_CHECKING:
    from pathlib import Path

Scope = Literal["worker", "project", "global"]  # narrowest first, because models often choose the first value
AuthorKind = Literal["worker", "person", "compaction", "hand"]  # hand: the file was changed without Guildhall
Action = Literal["write", "edit", "remove", "compact", "revert"]  # edit: by hand, logged before it is overwritten

SCOPES: tuple[Scope, ...] = ("global", "project", "worker")
SUFFIX = ".md"
COMPACTED_KEY = "compacted"  # written by compaction only
MAX_ENTRY_BYTES = 100_000
CHARS_PER_TOKEN = 4
COMPACTOR_WORKER = "memory-compactor"
COMPACTION_BUDGET_USD = 0.05

_MAX_TIMESTAMP = 253_402_300_799  # 9999-12-31: files can have later times, datetime cannot
_MAX_LISTED_IDS = 12


@dataclass(frozen=True, kw_only=True)
class EntryInfo:
    """Name, age and size of an entry, known without opening its file."""

    scope: Scope
    key: str
    mtime_ns: int
    size: int  # bytes

    @property
    def written_at(self) -> str:
        seconds = min(max(self.mtime_ns / 1e9, 0), _MAX_TIMESTAMP)
        return stamp(datetime.fromtimestamp(seconds, UTC))

    def as_dict(self) -> dict[str, Any]:
        return {"scope": self.scope, "key": self.key, "written_at": self.written_at, "size": self.size}


@dataclass(frozen=True, kw_only=True)
class MemoryEntry(EntryInfo):
    """An entry with its content. The inode reveals whether the file was replaced after reading."""

    content: str
    inode: int

    def as_dict(self) -> dict[str, Any]:
        return {**super().as_dict(), "content": self.content}


@dataclass(frozen=True, kw_only=True)
class SkippedFile:
    """A file in a memory folder that is not a valid entry. Its name can be anything, so escape it before printing."""

    scope: Scope
    name: str
    reason: str

    def as_dict(self) -> dict[str, Any]:
        return {"scope": self.scope, "name": self.name, "reason": self.reason}


@dataclass(frozen=True, kw_only=True)
class Listing:
    """Entries scope by scope, newest first, and the files that were skipped."""

    entries: tuple[EntryInfo, ...]
    skipped: tuple[SkippedFile, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return {
            "entries": [entry.as_dict() for entry in self.entries],
            "skipped": [file.as_dict() for file in self.skipped],
        }


@dataclass(frozen=True, kw_only=True)
class Author:
    """Who changed an entry. Set by the hall; tools and commands cannot choose it."""

    kind: AuthorKind
    worker: str | None = None
    run: str | None = None

    def __str__(self) -> str:
        if self.kind != "worker":
            return "you" if self.kind == "person" else self.kind
        name = self.worker or "a worker"
        return f"{name} in {self.run}" if self.run else name


PERSON = Author(kind="person")
HAND = Author(kind="hand")
COMPACTION = Author(kind="compaction")


@dataclass(frozen=True, kw_only=True)
class Change:
    """One logged change of an entry. `digest` and `content` are None if the change removed the entry."""

    id: int
    scope: Scope
    key: str
    action: Action
    author: Author
    at: str
    digest: str | None
    content: str | None

    def __str__(self) -> str:
        verb = {
            "write": "written",
            "edit": "edited",
            "remove": "removed",
            "compact": "compacted and archived" if self.content is None else "written",
            "revert": "restored",
        }[self.action]
        return f"{verb} by {self.author}, {self.at}"

    def as_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "scope": self.scope,
            "key": self.key,
            "action": self.action,
            "by": self.author.kind,
            "worker": self.author.worker,
            "run": self.author.run,
            "at": self.at,
            "digest": self.digest,
        }


@dataclass(frozen=True, kw_only=True)
class EntryHistory:
    """An entry as it is now, with its logged changes, newest first.

    Every change made through Guildhall is in the log with its digest, so a content with another digest was written by
    hand.
    """

    scope: Scope
    key: str
    folder: Path
    entry: MemoryEntry | None  # None if it does not exist now
    changes: tuple[Change, ...]

    @property
    def is_changed_by_hand(self) -> bool:
        """Return True if the file was created, edited or deleted by hand after the last logged change."""
        logged_digest = self.changes[0].digest if self.changes else None
        return logged_digest != self._current_digest

    @property
    def summary(self) -> str:
        """Describe the origin of the current content, on a single line."""
        if not self.changes:
            return f"created by hand, {self.entry.written_at}" if self.entry else "does not exist"
        last = self.changes[0]
        if not self.is_changed_by_hand:
            return str(last)
        if self.entry is None:
            return f"deleted by hand; last logged change: {last}"
        for change in self.changes:
            if change.digest == self._current_digest:
                return f"restored by hand to the content {change}; last logged change: {last}"
        return f"edited by hand, {self.entry.written_at}; last logged change: {last}"

    def content_to_restore(self, change_id: int | None) -> str:
        """Return the content of a change, or the last content that differs from the current content."""
        contents = {change.id: change.content for change in self.changes if change.content is not None}
        name = f"{self.scope}/{self.key}"
        if change_id is None:
            current = self.entry.content if self.entry else None
            for content in contents.values():
                if content != current:
                    return content
            raise NotFound(f"cannot revert {name}: the log has no other content")
        if change_id not in contents:
            known = ", ".join(map(str, list(contents)[:_MAX_LISTED_IDS]))
            hint = f"Changes with a content: {known}." if known else "The log has no content of this entry."
            raise UsageError(f"cannot revert {name}: change {change_id} is unknown or removed the entry", hint=hint)
        return contents[change_id]

    @property
    def _current_digest(self) -> str | None:
        return content_digest(self.entry.content) if self.entry else None

    def as_dict(self) -> dict[str, Any]:
        return {
            "scope": self.scope,
            "key": self.key,
            "path": str(self.folder),
            "present": self.entry is not None,
            "by_hand": self.is_changed_by_hand,
            "verdict": self.summary,
            "records": [change.as_dict() for change in self.changes],
        }


@dataclass(frozen=True, kw_only=True)
class CompactionResult:
    """What a compaction did. `reason` explains to people why it did nothing; `status` is for programs."""

    scope: Scope
    status: Literal["compacted", "not_needed", "failed"]
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


def content_digest(content: str) -> str:
    return digest(content.encode())


def is_key(text: str) -> bool:
    """Return True if the text is a valid key: a plain name without the file suffix."""
    return is_name(text) and text[-3:] != SUFFIX  # a slice, not endswith: called for every file of every prompt


def check_key(key: str) -> None:
    if is_key(key):
        return
    hint = "Use up to 64 letters, digits, '_', '-' or '.', starting with a letter or digit, without '..'."
    if is_name(key):
        hint = f"Leave out {SUFFIX}; it is added to the file name automatically."
    shown = key if len(key) <= 80 else f"{key[:80]}..."
    raise UsageError(f"invalid memory key: {shown!a}", hint=hint)


def check_writable_key(key: str) -> None:
    """Raise UsageError unless the key is valid and not reserved."""
    check_key(key)
    if key.lower() == COMPACTED_KEY:
        raise UsageError(f"invalid memory key: {key!r} is reserved for compaction", hint="Use another key.")


def check_content(content: str) -> None:
    """Raise UsageError unless the content can be stored as an entry."""
    try:
        size = len(content.encode())
    except UnicodeEncodeError:
        raise UsageError("invalid content: contains a lone surrogate", hint="Write plain text.") from None
    if "\0" in content:
        raise UsageError("invalid content: contains a NUL character", hint="Write plain text.")
    if not content.strip():
        raise UsageError("invalid content: empty", hint="Write the text to remember.")
    if size > MAX_ENTRY_BYTES:
        raise UsageError(
            f"invalid content: {size:,} bytes (maximum: {MAX_ENTRY_BYTES:,})",
            hint="Shorten it, or split it into several entries.",
        )
