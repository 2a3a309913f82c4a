"""What a worker has made and git ignores: build output mostly, and now and then work. It is not merged.

Before its checkout goes it is put aside, in a commit of its own that is on no branch. What is too large for that, such
as a folder of packages, is named. What git cannot hold at all is moved to a folder of the hall's.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from guildhall.projects import trees
from guildhall.projects.model import KEPT, OURS
from guildhall.projects.taking import ignored, take_these

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from guildhall.projects.git import Git

_MOST_FILES, _MOST_BYTES = 200, 10 * 1024**2  # of a file or folder that is kept
_ALL_FILES, _ALL_BYTES = 1_000, 32 * 1024**2  # of all that is kept of one checkout
_NAMED = 20


@dataclass(frozen=True, kw_only=True)
class Aside:
    """What git ignores of a checkout: what was kept, at which ref, and what was not, with the reason."""

    ref: str | None = None
    kept: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    folder: str | None = None
    moved: tuple[str, ...] = ()  # there, because git cannot hold it

    def told(self) -> str:
        """For the timeline."""
        parts = [self._of_ignored()] if self.kept or self.lost else []
        parts += [f"git cannot hold some of what was made; it is in {self.folder}: {_named(self.moved)}"] * bool(
            self.moved
        )
        return "; ".join(parts)

    def _of_ignored(self) -> str:
        kept = f"; kept at {self.ref}: {_named(self.kept)}" if self.kept else ""
        lost = f"; not kept: {_named(self.lost)}" if self.lost else ""
        return f"git ignores some of what was made{kept}{lost}"


def put_aside(git: Git, tree: Path, index: Path, branch: str, tip: str) -> Aside | None:
    """Keeps what git ignores in a checkout; None where there is nothing. Done again, it is found again."""
    wanted: list[bytes] = []
    lost: list[str] = []
    files = size = 0
    for path in ignored(git, tree, index):
        try:
            count, length = _measured(tree / os.fsdecode(path))
        except OSError as error:
            lost.append(f"{_shown(path)} ({error.strerror})")
            continue
        if not count:
            continue
        large = count > _MOST_FILES or length > _MOST_BYTES
        if large or files + count > _ALL_FILES or size + length > _ALL_BYTES:
            lost.append(f"{_shown(path)} ({_extent(count, length)})")
            continue
        files, size = files + count, size + length
        wanted.append(path)
    taken = take_these(git, tree, wanted)
    there = [entry for entry in taken.changes if entry.object is not None]
    lost += [f"{name} ({reason})" for name, reason in taken.left]
    if not there:
        return Aside(lost=tuple(lost)) if lost else None
    made = trees.with_entries(git, tip, there)
    ref = _kept(git, made, branch, tip)
    return Aside(ref=ref, kept=tuple(_shown(entry.path) for entry in there), lost=tuple(lost))


def move_out(tree: Path, names: Sequence[str], place: Path) -> Path:
    """Moves what git cannot hold out of a checkout that is to go; the folder in which it is then."""
    place.parent.mkdir(parents=True, exist_ok=True)
    folder = next(one for n in range(1, 1000) if not (one := place.with_name(f"{place.name}-{n}")).exists())
    for name in names:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        (tree / name.rstrip("/")).rename(target)
    return folder


def _kept(git: Git, tree: str, branch: str, tip: str) -> str:
    ref = f"{KEPT}ignored/{branch.removeprefix(OURS)}"
    before = git.resolve(ref)
    if before is not None and git.run("rev-parse", "--verify", f"{before}^{{tree}}").line == tree:
        return ref
    commit = trees.commit(git, tree, [tip], f"What git ignores of {branch}\n")
    if before is not None:
        ref = f"{ref}-{commit[:12]}"
    git.move("keep what is ignored", f"update {ref} {commit} {'0' * len(commit)}")
    return ref


def _measured(path: Path) -> tuple[int, int]:
    """How many files there are at a path, and their bytes; no further than too many."""
    if path.is_symlink() or not path.is_dir():
        return 1, path.lstat().st_size

    def stop(error: OSError) -> None:
        raise error

    count = size = 0
    for folder, _, names in os.walk(path, onerror=stop):
        count += len(names)
        for name in names:
            size += os.lstat(os.path.join(folder, name)).st_size  # noqa: PTH118 - there may be very many
        if count > _MOST_FILES or size > _MOST_BYTES:
            break
    return count, size


def _extent(count: int, length: int) -> str:
    return f"more than {_MOST_FILES} files" if count > _MOST_FILES else f"{count:,} files, {length:,} bytes"


def _shown(path: bytes) -> str:
    return path.decode("utf-8", "replace")


def _named(paths: Sequence[str]) -> str:
    return ", ".join(paths[:_NAMED]) + (f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else "")
