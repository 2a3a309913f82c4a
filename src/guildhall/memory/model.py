"""The nouns of memory: where it lies, what an entry is, who wrote it. And what a key and a content may be."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from guildhall.core.clock import stamp
from guildhall.core.errors import UsageError
from guildhall.core.ids import digest, is_name

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from guildhall.core.frame import Frame
    from guildhall.core.paths import Home
    from guildhall.workers.model import Worker

Scope = Literal["global", "project", "worker"]
Action = Literal["write", "edit", "remove", "compact", "revert"]  # edit: by hand, noticed when it was about to go
By = Literal["worker", "person", "compaction", "hand"]

SCOPES: tuple[Scope, ...] = ("global", "project", "worker")
SUFFIX = ".md"
COMPACTED = "compacted"  # the key that compaction writes, and nobody else
MAX_BYTES = 100_000  # of one entry
CHARACTERS_PER_TOKEN = 4

# 64 bits: a repository can be given a path in it, and must not be able to hit upon another worker's folder.
_HASH = 16
_LATEST = 253_402_300_799  # seconds: the last that a date can say; a file may claim any time


@dataclass(frozen=True, kw_only=True)
class Place:
    """The folder of one scope, as one worker (or the person) sees it."""

    scope: Scope
    folder: Path
    name: str  # the folder below the memory of the home, as the record names it: `workers/reviewer-1f2e...`


@dataclass(frozen=True, kw_only=True)
class Listed:
    """An entry in a listing: known without being read."""

    scope: Scope
    key: str
    modified: int  # ns since 1970
    size: int  # bytes

    @property
    def written_at(self) -> str:
        return stamp(datetime.fromtimestamp(min(max(self.modified / 1e9, 0), _LATEST), UTC))

    def as_dict(self) -> dict[str, Any]:
        return {"scope": self.scope, "key": self.key, "written_at": self.written_at, "size": self.size}


@dataclass(frozen=True, kw_only=True)
class Entry(Listed):
    """An entry as it was read. `inode` tells a file that was replaced since from the one that was read."""

    content: str
    inode: int

    def as_dict(self) -> dict[str, Any]:
        return {**super().as_dict(), "content": self.content}


@dataclass(frozen=True, kw_only=True)
class Skipped:
    """Something in a scope's folder that is no entry, and why. The name is whatever the file system says."""

    scope: Scope
    name: str
    reason: str

    def as_dict(self) -> dict[str, Any]:
        return {"scope": self.scope, "name": self.name, "reason": self.reason}


@dataclass(frozen=True, kw_only=True)
class Listing:
    """What a scope holds, newest first."""

    entries: tuple[Listed, ...]
    skipped: tuple[Skipped, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return {
            "entries": [entry.as_dict() for entry in self.entries],
            "skipped": [skipped.as_dict() for skipped in self.skipped],
        }


@dataclass(frozen=True, kw_only=True)
class Writer:
    """Who changes the memory. Known to the hall; nobody claims it in an argument."""

    by: By
    worker: str | None = None
    run: str | None = None

    @staticmethod
    def person() -> Writer:
        return Writer(by="person")

    def __str__(self) -> str:
        if self.by == "worker":
            return f"{self.worker or 'a worker'} in {self.run}" if self.run else self.worker or "a worker"
        return {"person": "you", "hand": "hand", "compaction": "compaction"}[self.by]


@dataclass(frozen=True, kw_only=True)
class Record:
    """One change of one entry. `digest` is that of the file afterwards; None: the entry is gone from its scope."""

    id: int
    place: str
    scope: Scope
    key: str
    action: Action
    writer: Writer
    at: str
    digest: str | None
    content: str | None

    def as_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "scope": self.scope,
            "key": self.key,
            "action": self.action,
            "by": self.writer.by,
            "worker": self.writer.worker,
            "run": self.writer.run,
            "at": self.at,
            "digest": self.digest,
        }


def places(home: Home, worker: Worker | None, frame: Frame) -> Mapping[Scope, Place]:
    """The scopes that a worker may read and write; without a worker, those that everyone shares.

    A worker's own folder is found by where the worker comes from, not by its name: the `reviewer` of a repository that
    was cloned today is not the `reviewer` at home. Its text may change, and its name in it: it stays who it is.

    A member has one memory for all who work in it, which goes with its folder wherever that goes.
    """
    if home.keeps is not None:
        return {"worker": Place(scope="worker", folder=home.memory, name="member")}
    project = (worker.folder(frame) if worker else frame.root).resolve()
    names: dict[Scope, str] = {"global": "global", "project": f"projects/{_label(project.name, str(project))}"}
    if worker is not None:
        shared = worker.scope in ("workflow", "package")  # its file has others in it, or the name that all have
        name = worker.path.stem if worker.path and not shared else worker.name
        names["worker"] = f"workers/{_label(name, worker.identity)}"
    return {scope: Place(scope=scope, folder=home.memory / name, name=name) for scope, name in names.items()}


def _label(name: str, origin: str) -> str:
    readable = "".join(char if char.isascii() and (char.isalnum() or char in "_-") else "-" for char in name)[:40]
    return f"{readable or 'root'}-{digest(origin.encode('utf-8', 'surrogateescape'))[:_HASH]}"


def is_key(text: str) -> bool:
    """Whether the text can be the key of an entry: a name, without the suffix that its file has anyway."""
    return is_name(text) and text[-3:] != SUFFIX


def check_key(key: str, *, writing: bool = False) -> None:
    """Raises unless the key can be used: to look, or to write."""
    if not is_key(key):
        hint = "Use letters, digits, '_', '-' and '.', a letter or digit first, at most 64, no '..'."
        if is_name(key):
            hint = f"Leave out {SUFFIX}: the file gets it by itself."
        shown = key if len(key) <= 80 else f"{key[:80]}..."
        raise UsageError(f"{shown!a} cannot be the key of a memory entry", hint=hint)
    if writing and key.lower() == COMPACTED:
        hint = "Use another key; what compaction wrote is condensed again with the rest, or removed."
        raise UsageError(f"the key {key!r} is kept for compaction", hint=hint)


def check_content(content: str) -> bytes:
    """The content as its file holds it. Raises unless it is text that can be kept."""
    try:
        data = content.encode()
    except UnicodeEncodeError:
        raise UsageError("the content is not text: it has half characters in it", hint="Write plain text.") from None
    if "\0" in content:
        raise UsageError("the content is not text: it has NUL characters in it", hint="Write plain text.")
    if not content.strip():
        raise UsageError("there is nothing to remember: the content is empty", hint="Say in it what is true now.")
    if len(data) > MAX_BYTES:
        raise UsageError(
            f"the content has {len(data):,} bytes, and an entry at most {MAX_BYTES:,}",
            hint="Say it more briefly, or split it into several entries.",
        )
    return data
