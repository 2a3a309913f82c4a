"""Trees and commits made without a checkout: files put into a tree, trees merged, commits written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from guildhall.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from guildhall.projects.git import Git
    from guildhall.projects.model import Author

_FILE = "100644"
_REGULAR = ("100644", "100755")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What stands at a path of a tree: a file by its object, or nothing (`object` is None)."""

    path: bytes
    mode: str = _FILE
    object: str | None = None

    @property
    def is_file(self) -> bool:
        """A regular one; not a link, a folder or a submodule."""
        return self.mode in _REGULAR and self.object is not None


@dataclass(frozen=True, kw_only=True)
class Merged:
    """Two commits merged: the tree, and what could not be merged with both sides' versions of it."""

    tree: str
    conflicts: Mapping[bytes, Mapping[int, Entry]]  # path -> stage (1 before, 2 ours, 3 theirs) -> entry


def path_in(path: str) -> bytes:
    """A path of a tree as git has it; raises for one that leads out or that git would not take."""
    parts = path.split("/")
    if not path or "\0" in path or any(part in ("", ".", "..") or part.lower() == ".git" for part in parts):
        raise UsageError(f"{path[:200]!r} is no path in a project", hint="Give it relative to the project's folder.")
    try:
        return path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise UsageError(f"{path[:200]!a} is no path in a project: half a character") from None


def blob(git: Git, data: bytes) -> str:
    """The object of a file's content, stored."""
    return git.run("hash-object", "-w", "--stdin", input=data).line


def entry_at(git: Git, commit: str, path: bytes) -> Entry | None:
    """What a commit has at a path."""
    for entry in entries(git, commit, path):
        if entry.path == path:
            return entry
    return None


def entries(git: Git, commit: str, *under: bytes, deep: bool = False) -> list[Entry]:
    """What a commit, or a tree, has at some paths, or everything below them."""
    where = (path.decode("utf-8", "surrogateescape") for path in under)
    told = git.run("ls-tree", "-z", *(("-r",) if deep else ()), "--full-tree", commit, "--", *where).out
    found: list[Entry] = []
    for line in told.split(b"\0"):
        if line:
            head, _, name = line.partition(b"\t")
            mode, _, id = head.decode().split(" ")
            found.append(Entry(path=name, mode=mode, object=id))
    return found


def content(git: Git, entry: Entry) -> bytes | None:
    """The content of a regular file; None for a link, a folder or a submodule."""
    return git.run("cat-file", "blob", str(entry.object)).out if entry.is_file else None


def contents(git: Git, files: Iterable[Entry]) -> dict[bytes, bytes]:
    """The content of every regular file among these, by its path; one call of git."""
    wanted = [entry for entry in files if entry.is_file]
    told = git.run("cat-file", "--batch", input="".join(f"{entry.object}\n" for entry in wanted).encode()).out
    found: dict[bytes, bytes] = {}
    at = 0
    for entry in wanted:
        end = told.index(b"\n", at)
        size = int(told[at:end].rpartition(b" ")[2])
        found[entry.path] = told[end + 1 : end + 1 + size]
        at = end + size + 2
    return found


def with_entries(git: Git, tree: str, changes: Iterable[Entry]) -> str:
    """The tree, or that of a commit, with files put in and taken out."""
    with git.scratch() as folder:
        index = folder / "index"
        git.run("read-tree", tree, index=index)
        put_in_index(git, index, changes)
        return git.run("write-tree", index=index).line


def put_in_index(git: Git, index: Path, changes: Iterable[Entry]) -> None:
    """Files put into an index, and taken out first, so that a file may become a folder."""
    lines = sorted(changes, key=lambda entry: entry.object is not None)
    git.run("update-index", "-z", "--index-info", index=index, input=b"".join(_index_line(git, one) for one in lines))


def _index_line(git: Git, entry: Entry) -> bytes:
    if entry.object is None:
        return f"0 {git.nothing}\t".encode() + entry.path + b"\0"
    return f"{entry.mode} {entry.object}\t".encode() + entry.path + b"\0"


def merge(git: Git, ours: str, theirs: str) -> Merged:
    """Merges two commits into a tree. Nothing is moved."""
    told = git.run("merge-tree", "--write-tree", "-z", "--no-messages", ours, theirs, ok=(0, 1))
    tree, *lines = told.out.split(b"\0")
    conflicts: dict[bytes, dict[int, Entry]] = {}
    for line in lines:
        if line:
            head, _, name = line.partition(b"\t")
            mode, id, stage = head.decode().split(" ")
            conflicts.setdefault(name, {})[int(stage)] = Entry(path=name, mode=mode, object=id)
    return Merged(tree=tree.decode(), conflicts=conflicts)


def commit(git: Git, tree: str, parents: Iterable[str], message: str, author: Author | None = None) -> str:
    """A commit, written and not yet on any branch."""
    named = [word for parent in parents for word in ("-p", parent)]
    text = message.replace("\0", "").encode("utf-8", "replace")
    return git.run("commit-tree", tree, *named, "-F", "-", input=text, author=author).line
