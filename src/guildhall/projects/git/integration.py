"""The integration branch: merges the user's branch, commits files and squashes work into `claude/main`.

Commits are created first, and then the ref is moved by compare-and-swap, again if another process has moved it.
Does not create checkouts (`worktrees.py`) and does not run git itself (`repository.py`).

Invariant: a crash leaves the branch before or after an operation, never between. In the folders of the hall below
`.lore/`, the version of the integration branch always wins.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from guildhall.core.errors import Conflict, GitFailed, MergeConflict, NotFound
from guildhall.projects.git import repository
from guildhall.projects.git.repository import Entry, Git, Merged, checkouts, is_object
from guildhall.projects.model import (
    INTEGRATION,
    KEPT,
    LORE,
    OF_THE_HALL,
    OURS,
    Project,
    join_names,
    without_secrets,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


_LOOKED_AT = 500  # commits of each side
_TRIED = (5, 20)  # commits of ours and of the user's that are merged to see whether that gives the user's


def with_users(git: Git, now: str, user: str) -> Merged:
    """Merge the integration branch with the user's branch, which may have squashed earlier work of the hall."""
    merged = repository.merge(git, now, user)
    if not merged.conflicts:
        return merged
    found = _taken_over(git, now, user)
    if found is None:
        return merged
    ours, theirs, tree = found
    joint = repository.commit(git, tree, [ours, theirs], "Taken over\n")
    ahead = repository.merge(git, now, joint)
    if ahead.conflicts:
        return merged
    base = repository.commit(git, ahead.tree, [now, joint], "Taken over\n")
    return repository.merge(git, base, user)


def _taken_over(git: Git, now: str, user: str) -> tuple[str, str, str] | None:
    """Return a commit of the hall, the user's commit that squashed or copied it, and the tree of the latter."""
    ours, theirs = _side(git, now, user), _side(git, user, now)
    by_tree = {tree: commit for commit, tree in reversed(ours)}
    for commit, tree in theirs:
        if tree in by_tree:
            return by_tree[tree], commit, tree
    for commit, tree in theirs[: _TRIED[1]]:
        before = git.run("rev-parse", "--verify", "--quiet", f"{commit}^", ok=(0, 1, 128)).line
        for one, _ in ours[: _TRIED[0]] if before else ():
            tried = repository.merge(git, before, one)
            if tried.tree == tree and not tried.conflicts:
                return one, commit, tree
    return None


def _side(git: Git, tip: str, other: str) -> list[tuple[str, str]]:
    """Return the commits, with their trees, that only one side has, newest first."""
    found = git.run("log", "--first-parent", f"--max-count={_LOOKED_AT}", "--format=%H %T", tip, f"^{other}").line
    return [(commit, tree) for commit, tree in map(str.split, found.splitlines())]


_TRIES = 20
_MOST_DIFF = 200_000  # bytes
_TIP = "Guildhall-Tip"  # in the message of a squash: which branch was squashed, and where it was: to know it again
_REF = f"refs/heads/{INTEGRATION}"
_RECORDS = tuple(f"{LORE}/{name}".encode() for name in OF_THE_HALL)


class Branches:
    """The hall's branches of one project."""

    def __init__(self, project: Project, git: Git, redact: Callable[[str], str] = str) -> None:
        """`redact`: takes secrets out of what the hall itself writes there."""
        self.project = project
        self.git = git
        self.redact = redact

    # reading

    def tip(self, ref: str = INTEGRATION) -> str:
        """Return the commit of a branch or a full ref. Return a commit id as it is."""
        found = ref if is_object(ref) else self.git.resolve(ref)
        if found is None:
            raise NotFound(f"the project {self.project.name} has no branch {ref!r}", where=str(self.project.path))
        return found

    def exists(self, branch: str) -> bool:
        return self.git.resolve(branch) is not None

    def read(self, path: str, at: str = INTEGRATION) -> bytes | None:
        """Return the content of a regular file, or None if there is none at this path."""
        entry = self._file(path, at)
        return self.git.run("cat-file", "blob", str(entry.object)).out if entry is not None else None

    def has(self, path: str, at: str = INTEGRATION) -> bool:
        """Return True if there is a regular file at this path."""
        return self._file(path, at) is not None

    def _file(self, path: str, at: str) -> Entry | None:
        name = repository.path_in(path)
        found = repository.entries(self.git, self.tip(at), name)
        return next((entry for entry in found if entry.path == name and entry.is_file), None)

    def files(self, under: str = LORE, at: str = INTEGRATION) -> dict[str, bytes]:
        """Return the files below a folder with their contents, sorted."""
        found = repository.contents(self.git, self._below(under, at))
        return {path.decode("utf-8", "surrogateescape"): found[path] for path in sorted(found)}

    def list(self, under: str = LORE, at: str = INTEGRATION) -> list[str]:
        """Return the files below a folder, sorted."""
        return sorted(entry.path.decode("utf-8", "surrogateescape") for entry in self._below(under, at))

    def _below(self, under: str, at: str) -> Iterable[Entry]:
        return repository.entries(self.git, self.tip(at), repository.path_in(under), deep=True)

    def diff(self, branch: str) -> str:
        """Return the changes of a branch since it left the integration branch, as a summary and a patch."""
        tip = self.tip(branch)
        base = self._base(self.tip(), tip)
        how = ("--no-ext-diff", "--no-textconv", "--no-color", "--stat", "--patch", "--find-renames")
        text = self.git.run("diff-tree", "-r", *how, base or _empty(self.git), tip).out
        shown = text[:_MOST_DIFF].decode("utf-8", "replace")
        return shown if len(text) <= _MOST_DIFF else f"{shown}\n... {len(text) - _MOST_DIFF:,} more bytes\n"

    def in_place_of_records(self, tip: str) -> tuple[list[str], list[str]]:
        """Return the new and the changed files of a branch in the folders of the hall. They are not merged."""
        base = self._base(self.tip(), tip) or _empty(self.git)
        places = [f"{LORE}/{name}" for name in OF_THE_HALL]
        how = ("-r", "-z", "--name-status", "--no-renames", "--no-ext-diff")
        told = self.git.run("diff-tree", *how, base, tip, "--", *places).out.decode("utf-8", "replace").split("\0")
        pairs = list(zip(told[::2], told[1::2], strict=False))
        return [path for how, path in pairs if how == "A"], [path for how, path in pairs if how != "A"]

    # moving

    def demand_movable(self) -> None:
        """Raise Conflict if the integration branch is checked out and so cannot be moved."""
        self._demand_free(_REF)

    def demand_followable(self) -> None:
        """Raise if the user's branch cannot be merged into the integration branch."""
        user, now = self._user_tip(), self.git.resolve(_REF)
        if now is not None and not self._contains(now, user) and not self._contains(user, now):
            self._tree_with_users(now, user)

    def ensure(self) -> str:
        """Return the tip of the integration branch. Create the branch at the user's branch if there is none."""
        return self.git.resolve(_REF) or self.follow()

    def follow(self) -> str:
        """Merge the user's branch into the integration branch, and return its tip."""

        def followed(now: str | None) -> str:
            user = self._user_tip()
            if now is not None and self._contains(now, user):
                return now
            if now is None or self._contains(user, now):
                return user
            tree = self._tree_with_users(now, user)
            return repository.commit(self.git, tree, [now, user], f"Follow {self.project.branch}\n")

        return self._moved(followed, f"follow {self.project.branch}")

    def keep_up(self) -> None:
        """Merge the user's branch if possible. Conflicts are reported elsewhere."""
        with suppress(MergeConflict):
            self.follow()

    def write(self, files: Mapping[str, bytes | None], message: str, author: str) -> str:
        """Write files to the integration branch, or delete them (None), in one commit."""
        self.ensure()
        message = self.redact(message)
        changes = self._entries(files)

        def made(now: str | None) -> str:
            now = now or self.ensure()
            paths = [one.path for one in changes]
            there = {entry.path: entry for entry in repository.entries(self.git, now, *paths)}
            needed = [one for one in changes if there.get(one.path, Entry(path=one.path)) != one]
            if not needed:
                return now
            tree = repository.with_entries(self.git, now, needed)
            return repository.commit(self.git, tree, [now], message, author)

        return self._moved(made, message)

    def squash(self, branch: str, message: str, author: str, also: Mapping[str, bytes | None] | None = None) -> str:
        """Commit all changes of a branch to the integration branch as one commit, with further files.

        Return the earlier commit if the branch was squashed before. Raise MergeConflict, and change nothing, if it
        cannot be merged. In `.lore/` the branch's version wins, except in the folders of the hall.
        """
        tip = self.git.resolve(branch) or self.tip(KEPT + branch.removeprefix(OURS))
        mark = f"{_TIP}: {branch} {tip}"  # other branches may have the same tip
        how = ("--format=%H", "--fixed-strings", f"--grep={mark}", "--max-count=1")
        if found := self.git.run("log", *how, self.ensure(), f"^{tip}").line:
            return found
        changes = self._entries(also or {})
        text = f"{self.redact(message).rstrip()}\n\n{mark}\n"

        def made(now: str | None) -> str:
            now = now or self.ensure()
            tree = self._merged_tree(now, tip, changes)
            return repository.commit(self.git, tree, [now], text, author)

        return self._moved(made, f"squash {branch}")

    def keep(self, branch: str) -> str:
        """Move a branch of the hall to refs/guildhall/kept, and return the new ref."""
        if not branch.startswith(OURS) or branch == INTEGRATION:
            raise Conflict(f"{branch!r} is no branch of a commission or a meeting")
        ref = f"refs/heads/{branch}"
        kept = KEPT + branch.removeprefix(OURS)
        tip = self.git.resolve(ref)
        if tip is None:
            if self.git.resolve(kept) is None:
                raise NotFound(f"the project {self.project.name} has no branch {branch!r}")
            return kept
        self._demand_free(ref)
        before = self.git.resolve(kept)
        if before is not None and not self._contains(tip, before):  # an earlier branch of the same name is kept there
            kept = f"{kept}-{tip[:12]}"
            before = self.git.resolve(kept)
        put = f"update {kept} {tip} {before or '0' * len(tip)}"
        self.git.move(f"keep {branch}", put, f"delete {ref} {tip}")
        return kept

    # how

    def _user_tip(self) -> str:
        found = self.git.resolve(self.project.ref)
        if found is None:
            raise NotFound(
                f"the branch {self.project.branch!r} of the project {self.project.name} is gone, or has no commit yet",
                where=str(self.project.path),
                hint="Commit something there, or name another branch in `projects:` of config.yaml.",
            )
        return found

    def _tree_with_users(self, now: str, user: str) -> str:
        if self._base(now, user) is None:
            raise Conflict(
                f"{self.project.branch} and {INTEGRATION} have no common history any more",
                where=str(self.project.path),
                hint=f"Move the old one away: `git branch -m {INTEGRATION} claude/old`. A new one is made.",
            )
        merged = with_users(self.git, now, user)
        if merged.conflicts:
            files = _shown(merged.conflicts)
            raise MergeConflict(
                f"{self.project.branch} and {INTEGRATION} have both changed the same places: {join_names(files)}",
                files=files,
                where=str(self.project.path),
                hint=f"Merge {INTEGRATION} into {self.project.branch} yourself (`git switch {self.project.branch}`, "
                f"`git merge {INTEGRATION}`); then it goes on.",
            )
        return merged.tree

    def _merged_tree(self, now: str, tip: str, also: list[Entry]) -> str:
        merged = repository.merge(self.git, now, tip)
        lore = f"{LORE}/".encode()
        outside = {path: stages for path, stages in merged.conflicts.items() if not path.startswith(lore)}
        if outside:
            files = _shown(outside)
            raise MergeConflict(
                f"the work and {INTEGRATION} have both changed the same places: {join_names(files)}",
                files=files,
                where=str(self.project.path),
                hint="Its branch is kept as it is.",
            )
        taken = [
            stages.get(3) or Entry(path=path)
            for path, stages in merged.conflicts.items()
            if not any(path == folder or path.startswith(folder + b"/") for folder in _RECORDS)
        ]
        changes = {one.path: one for one in (*taken, *self._records(now, merged.tree), *also)}
        return repository.with_entries(self.git, merged.tree, changes.values()) if changes else merged.tree

    def _records(self, now: str, tree: str) -> list[Entry]:
        """Return the entries that restore the hall's own records to the version of the integration branch."""
        ours, theirs = (set(repository.entries(self.git, one, *_RECORDS, deep=True)) for one in (now, tree))
        gone = {one.path for one in theirs} - {one.path for one in ours}
        return [*(ours - theirs), *(Entry(path=path) for path in gone)]

    def _moved(self, made: Callable[[str | None], str], why: str) -> str:
        """Move the integration branch to the commit made from its tip. Repeat while another process moves it."""
        for _ in range(_TRIES):
            now = self.git.resolve(_REF)
            new = made(now)
            if new == now:
                return new
            self._demand_free(_REF)
            try:
                self.git.move(why, f"update {_REF} {new} {now or '0' * len(new)}")
            except GitFailed:
                if self.git.resolve(_REF) == now:
                    raise
            else:
                return new
        raise Conflict(f"{INTEGRATION} is moved by somebody else all the time", where=str(self.project.path))

    def _demand_free(self, ref: str) -> None:
        """Raise Conflict if the branch is checked out: if it moved, every file there would look changed."""
        for head, where in checkouts(self.git.common):
            if head == ref:
                branch = ref.removeprefix("refs/heads/")
                raise Conflict(
                    f"{branch} is checked out",
                    where=str(where),
                    hint=f"It is the hall's to move: `git switch {self.project.branch}` there, then try again.",
                )

    def _entries(self, files: Mapping[str, bytes | None]) -> list[Entry]:
        def blob(data: bytes) -> str:
            return self.git.run("hash-object", "-w", "--stdin", input=without_secrets(data, self.redact)).line

        return [
            Entry(path=repository.path_in(path), object=None if data is None else blob(data))
            for path, data in files.items()
        ]

    def _contains(self, commit: str, ancestor: str) -> bool:
        if commit == ancestor:
            return True
        return self.git.run("merge-base", "--is-ancestor", ancestor, commit, ok=(0, 1)).code == 0

    def _base(self, one: str, other: str) -> str | None:
        return self.git.run("merge-base", one, other, ok=(0, 1)).line or None


def _empty(git: Git) -> str:
    return git.run("hash-object", "-t", "tree", "-w", "--stdin", input=b"").line


def _shown(conflicts: Mapping[bytes, object]) -> tuple[str, ...]:
    return tuple(sorted(path.decode("utf-8", "replace") for path in conflicts))
