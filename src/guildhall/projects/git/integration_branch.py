"""The integration branch: merges the user's branch, commits files and squashes work into `claude/main`.

The files in the folders of the hall below `.lore/` are on a ref of their own, so that the branch has the work only.
A commit is created first. Then the ref is moved by compare-and-swap, which is repeated if another process has moved it.
Does not create checkouts (`worktrees.py`) and does not run git itself (`repository.py`).

Invariant: each operation moves the branch once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from contextlib import suppress

from guildhall.core.errors import Conflict, GitFailed, MergeConflict, NotFound
from guildhall.projects.git import repository
from guildhall.projects.git.repository import Git, MergeResult, TreeEntry, is_object_id
from guildhall.projects.model import (
    ARCHIVE_REFS,
    BRANCH_PREFIX,
    HALL_FOLDERS,
    INTEGRATION,
    LORE,
    RECORDS,
    Diffstat,
    Project,
    is_hall_path,
    join_names,
    redact_file,
)

_MAX_COMPARED_COMMITS = 500  # of each side, by their trees
_MAX_HALL_MERGES, _MAX_USER_MERGES = 5, 20  # commits of each side that are merged to find a squash


def merge_user_branch(git: Git, tip: str, user: str) -> MergeResult:
    """Merge the user's branch, which may contain a squash of the hall's work, with the integration branch."""
    merged = repository.merge(git, tip, user)
    if not merged.conflicts:
        return merged
    squash = _find_squash(git, tip, user)
    if squash is None:
        return merged
    ours, theirs, tree = squash
    joint = repository.create_commit(git, tree, [ours, theirs], "Taken over\n")
    ahead = repository.merge(git, tip, joint)
    if ahead.conflicts:
        return merged
    base = repository.create_commit(git, ahead.tree, [tip, joint], "Taken over\n")
    return repository.merge(git, base, user)


def _find_squash(git: Git, tip: str, user: str) -> tuple[str, str, str] | None:
    """Return a commit of the hall, the user's commit with an equal change, and the tree of the user's commit."""
    ours, theirs = _list_commits(git, tip, user), _list_commits(git, user, tip)
    by_tree = {tree: commit for commit, tree in reversed(ours)}
    for commit, tree in theirs:
        if tree in by_tree:
            return by_tree[tree], commit, tree
    for commit, tree in theirs[:_MAX_USER_MERGES]:
        parent = git.run("rev-parse", "--verify", "--quiet", f"{commit}^", ok=(0, 1, 128)).text
        for candidate, _ in ours[:_MAX_HALL_MERGES] if parent else ():
            merged = repository.merge(git, parent, candidate)
            if merged.tree == tree and not merged.conflicts:
                return candidate, commit, tree
    return None


def _list_commits(git: Git, tip: str, other: str) -> list[tuple[str, str]]:
    """Return the commits and trees of `tip` that are not in `other`, newest first."""
    options = ("--first-parent", f"--max-count={_MAX_COMPARED_COMMITS}", "--format=%H %T")
    lines = git.run("log", *options, tip, f"^{other}").text.splitlines()
    return [(commit, tree) for commit, tree in map(str.split, lines)]


_MAX_UPDATES = 20  # attempts to move the ref, while another process moves it
_MAX_DIFF_BYTES = 200_000
_TRAILER = "Guildhall-Tip"  # of a squash commit, with the squashed branch and its tip; makes `squash` idempotent
_REF = f"refs/heads/{INTEGRATION}"
_HALL_PATHS = tuple(f"{LORE}/{name}".encode() for name in HALL_FOLDERS)


class Branches:
    """The hall's branches of one project."""

    def __init__(self, project: Project, git: Git, redact: Callable[[str], str] = str) -> None:
        """`redact`: removes secrets from the texts that the hall writes."""
        self.project = project
        self.git = git
        self.redact = redact

    # reading

    def tip(self, ref: str = INTEGRATION) -> str:
        """Return the commit of a branch, a full ref or a commit id. Raise NotFound for an unknown ref."""
        commit = ref if is_object_id(ref) else self.git.resolve(ref)
        if commit is None:
            raise NotFound(f"unknown branch {ref!r} of project {self.project.name}", where=str(self.project.path))
        return commit

    def branch_tip(self, branch: str) -> str:
        """Return the commit of a branch of the hall, which may be archived."""
        return self.git.resolve(branch) or self.tip(ARCHIVE_REFS + branch.removeprefix(BRANCH_PREFIX))

    def exists(self, branch: str) -> bool:
        return self.git.resolve(branch) is not None

    # Without a ref, files in the folders of the hall are read from the records, others from the integration branch.

    def read(self, path: str, ref: str | None = None) -> bytes | None:
        """Return the content of a file, or None if the path is not a regular file."""
        entry = self._find_file(path, ref)
        return self.git.run("cat-file", "blob", str(entry.object)).stdout if entry is not None else None

    def has_file(self, path: str, ref: str | None = None) -> bool:
        """Return True if the path is a regular file."""
        return self._find_file(path, ref) is not None

    def _find_file(self, path: str, ref: str | None) -> TreeEntry | None:
        name = repository.encode_path(path)
        entries = repository.list_entries(self.git, self._source(path, ref), name)
        return next((entry for entry in entries if entry.path == name and entry.is_file), None)

    def read_files(self, folder: str = LORE, ref: str | None = None) -> dict[str, bytes]:
        """Return the files below a folder with their contents, sorted."""
        contents = repository.read_contents(self.git, self._list_entries(folder, ref))
        return {path.decode("utf-8", "surrogateescape"): contents[path] for path in sorted(contents)}

    def list_files(self, folder: str = LORE, ref: str | None = None) -> list[str]:
        """Return the paths of the files below a folder, sorted."""
        return sorted(entry.path.decode("utf-8", "surrogateescape") for entry in self._list_entries(folder, ref))

    def _list_entries(self, folder: str, ref: str | None) -> Iterable[TreeEntry]:
        return repository.list_entries(self.git, self._source(folder, ref), repository.encode_path(folder), deep=True)

    def _source(self, path: str, ref: str | None) -> str:
        if ref is None and is_hall_path(path):
            return self.git.resolve(RECORDS) or self._empty_tree()
        return self.tip(ref or INTEGRATION)

    def list_squashed(self, before: str, after: str) -> list[tuple[str, Set[str]]]:
        """Return the branches that were squashed into `after` and not into `before`, with their changed paths."""
        options = ("--first-parent", "--no-merges", f"--format=%H %(trailers:key={_TRAILER},valueonly,separator=%x20)")
        lines = map(str.split, self.git.run("log", *options, after, f"^{before}").text.splitlines())
        return [(line[1], self.count_lines(f"{line[0]}^", line[0]).keys()) for line in lines if len(line) > 1]

    def diff(self, branch: str) -> str:
        """Return the changes of a branch since its merge base, as a summary and a patch."""
        tip = self.tip(branch)
        options = ("--no-ext-diff", "--no-textconv", "--no-color", "--stat", "--patch", "--find-renames")
        patch = self.git.run("diff-tree", "-r", *options, self._base_tree(tip), tip).stdout
        text = patch[:_MAX_DIFF_BYTES].decode("utf-8", "replace")
        return text if len(patch) <= _MAX_DIFF_BYTES else f"{text}\n... {len(patch) - _MAX_DIFF_BYTES:,} more bytes\n"

    def diffstat(self, branch: str) -> Diffstat:
        """Return the extent of the changes of a branch, without the folders of the hall."""
        tip = self.branch_tip(branch)
        counts = self.count_lines(self._base_tree(tip), tip)
        lines = [count for path, count in counts.items() if not is_hall_path(path)]
        added, removed = (sum(count[side] for count in lines if count is not None) for side in (0, 1))
        return Diffstat(files=len(lines), insertions=added, deletions=removed)

    def count_lines(self, before: str, after: str) -> dict[str, tuple[int, int] | None]:
        """Return the numbers of added and removed lines by path, or None for a binary file."""
        options = ("--numstat", "--no-renames", "--no-ext-diff", "--no-textconv", "-z")
        output = self.git.run("diff", *options, before, after, "--").stdout
        counts: dict[str, tuple[int, int] | None] = {}
        for line in output.decode("utf-8", "replace").split("\0"):
            added, _, rest = line.partition("\t")
            removed, _, path = rest.partition("\t")
            if path:
                counts[path] = None if added == "-" else (int(added), int(removed))
        return counts

    def changed_hall_files(self, tip: str) -> tuple[list[str], list[str]]:
        """Return the new and the changed files of a branch in the folders of the hall. `squash` ignores these files."""
        folders = [f"{LORE}/{name}" for name in HALL_FOLDERS]
        options = ("-r", "-z", "--name-status", "--no-renames", "--no-ext-diff")
        output = self.git.run("diff-tree", *options, self._base_tree(tip), tip, "--", *folders).stdout
        fields = output.decode("utf-8", "replace").split("\0")
        changes = list(zip(fields[::2], fields[1::2], strict=False))
        return [path for kind, path in changes if kind == "A"], [path for kind, path in changes if kind != "A"]

    def _base_tree(self, tip: str) -> str:
        """Return the merge base with the integration branch, or the empty tree if there is no merge base."""
        base = self._merge_base(self.tip(), tip)
        return base or self._empty_tree()

    def _empty_tree(self) -> str:
        return self.git.run("hash-object", "-t", "tree", "-w", "--stdin", input=b"").text

    # writing

    def check_updatable(self) -> None:
        """Raise if the user's branch cannot be merged into the integration branch."""
        user, tip = self._user_tip(), self.git.resolve(_REF)
        if tip is not None and not self._contains(tip, user) and not self._contains(user, tip):
            self._merge_user_tree(tip, user)

    def ensure(self) -> str:
        """Return the tip of the integration branch, created at the tip of the user's branch if it is missing."""
        return self.git.resolve(_REF) or self.update()

    def update(self) -> str:
        """Merge the user's branch into the integration branch, and return its tip."""

        def merge(tip: str | None) -> str:
            user = self._user_tip()
            if tip is not None and self._contains(tip, user):
                return tip
            if tip is None or self._contains(user, tip):
                return user
            tree = self._merge_user_tree(tip, user)
            return repository.create_commit(self.git, tree, [tip, user], f"Follow {self.project.branch}\n")

        return self._move(merge, f"follow {self.project.branch}")

    def try_update(self) -> None:
        """Merge the user's branch, unless there is a merge conflict."""
        with suppress(MergeConflict):
            self.update()

    def write(self, files: Mapping[str, bytes | None], message: str, author: str) -> str:
        """Write files to the integration branch, or delete them (None), in one commit."""
        self.ensure()
        return self._write(_REF, files, message, author)

    def write_records(self, files: Mapping[str, bytes | None], message: str, author: str) -> str:
        """Write files in the folders of the hall, or delete them (None), in one commit on the ref of the records."""
        return self._write(RECORDS, files, message, author)

    def _write(self, ref: str, files: Mapping[str, bytes | None], message: str, author: str) -> str:
        message = self.redact(message)
        entries = self._store_files(files)

        def commit(tip: str | None) -> str:
            base = tip or self._empty_tree()
            current = repository.list_entries(self.git, base, *(entry.path for entry in entries))
            by_path = {entry.path: entry for entry in current}
            changes = [entry for entry in entries if by_path.get(entry.path, TreeEntry(path=entry.path)) != entry]
            if tip is not None and not changes:
                return tip
            tree = repository.write_tree(self.git, base, changes)
            return repository.create_commit(self.git, tree, [tip] if tip else [], message, author)

        return self._move(commit, message, ref)

    def squash(self, branch: str, message: str, author: str) -> str:
        """Commit all changes of a branch to the integration branch as one commit, or none if nothing has changed.

        Return the earlier commit if the branch was squashed before. Raise MergeConflict, and change nothing, if it
        cannot be merged. In `.lore/` the branch's version wins, except in the folders of the hall.
        """
        branch_tip = self.branch_tip(branch)
        trailer = f"{_TRAILER}: {branch} {branch_tip}"  # several branches may have the same tip
        options = ("--format=%H", "--fixed-strings", f"--grep={trailer}", "--max-count=1")
        if earlier := self.git.run("log", *options, self.ensure(), f"^{branch_tip}").text:
            return earlier
        text = f"{self.redact(message).rstrip()}\n\n{trailer}\n"

        def commit(tip: str | None) -> str:
            tip = tip or self.ensure()
            tree = self._merge_work(tip, branch_tip)
            if tree == self.git.run("rev-parse", f"{tip}^{{tree}}").text:
                return tip
            return repository.create_commit(self.git, tree, [tip], text, author)

        return self._move(commit, f"squash {branch}")

    def archive(self, branch: str) -> str:
        """Move a branch of the hall to refs/guildhall/kept, and return the new ref."""
        if not branch.startswith(BRANCH_PREFIX) or branch == INTEGRATION:
            raise Conflict(f"cannot archive {branch!r}: not the branch of a commission or a meeting")
        ref = f"refs/heads/{branch}"
        archived = ARCHIVE_REFS + branch.removeprefix(BRANCH_PREFIX)
        tip = self.git.resolve(ref)
        if tip is None:
            if self.git.resolve(archived) is None:
                raise NotFound(f"unknown branch {branch!r} of project {self.project.name}")
            return archived
        self.check_movable(ref)
        before = self.git.resolve(archived)
        if before is not None and not self._contains(tip, before):  # an earlier branch of the same name
            archived = f"{archived}-{tip[:12]}"
            before = self.git.resolve(archived)
        update = f"update {archived} {tip} {before or '0' * len(tip)}"
        self.git.update_refs(f"keep {branch}", update, f"delete {ref} {tip}")
        return archived

    def _user_tip(self) -> str:
        tip = self.git.resolve(self.project.ref)
        if tip is None:
            raise NotFound(
                f"branch {self.project.branch!r} of project {self.project.name} is missing or has no commit",
                where=str(self.project.path),
                hint="Create a commit on it, or set another `branch:` of the project in config.yaml.",
            )
        return tip

    def _merge_user_tree(self, tip: str, user: str) -> str:
        if self._merge_base(tip, user) is None:
            raise Conflict(
                f"cannot merge {self.project.branch} into {INTEGRATION}: they have no common history",
                where=str(self.project.path),
                hint=f"Rename the old branch: `git branch -m {INTEGRATION} claude/old`. A new branch is created.",
            )
        merged = merge_user_branch(self.git, tip, user)
        if merged.conflicts:
            files = _decode(merged.conflicts)
            raise MergeConflict(
                f"merge conflict between {self.project.branch} and {INTEGRATION}: {join_names(files)}",
                files=files,
                where=str(self.project.path),
                hint=f"Merge {INTEGRATION} into {self.project.branch} yourself: `git switch {self.project.branch}`, "
                f"then `git merge {INTEGRATION}`.",
            )
        return merged.tree

    def _merge_work(self, tip: str, branch_tip: str) -> str:
        """Return the merged tree. In conflicts below `.lore/`, one side wins."""
        merged = repository.merge(self.git, tip, branch_tip)
        lore = f"{LORE}/".encode()
        outside = {path: stages for path, stages in merged.conflicts.items() if not path.startswith(lore)}
        if outside:
            files = _decode(outside)
            raise MergeConflict(
                f"merge conflict with {INTEGRATION}: {join_names(files)}",
                files=files,
                where=str(self.project.path),
                hint="Nothing was merged: the work is still on its branch.",
            )
        theirs = [
            stages.get(3) or TreeEntry(path=path)
            for path, stages in merged.conflicts.items()
            if not any(path == folder or path.startswith(folder + b"/") for folder in _HALL_PATHS)
        ]
        changes = {entry.path: entry for entry in (*theirs, *self._restored_hall_files(tip, merged.tree))}
        return repository.write_tree(self.git, merged.tree, changes.values()) if changes else merged.tree

    def _restored_hall_files(self, tip: str, tree: str) -> list[TreeEntry]:
        """Return the changes that restore the hall's files in a tree to the version of the integration branch."""
        ours, theirs = (set(repository.list_entries(self.git, ref, *_HALL_PATHS, deep=True)) for ref in (tip, tree))
        added = {entry.path for entry in theirs} - {entry.path for entry in ours}
        return [*(ours - theirs), *(TreeEntry(path=path) for path in added)]

    def _move(self, commit: Callable[[str | None], str], reason: str, ref: str = _REF) -> str:
        """Move a ref to the commit that is created from its tip, and return that commit."""
        for _ in range(_MAX_UPDATES):
            tip = self.git.resolve(ref)
            new = commit(tip)
            if new == tip:
                return new
            self.check_movable(ref)
            try:
                self.git.update_refs(reason, f"update {ref} {new} {tip or '0' * len(new)}")
            except GitFailed:
                if self.git.resolve(ref) == tip:
                    raise
            else:
                return new
        message = f"cannot update {ref.removeprefix('refs/heads/')}: another process keeps moving it"
        raise Conflict(message, where=str(self.project.path), hint="Try again.")

    def check_movable(self, ref: str = _REF) -> None:
        """Raise Conflict if the user has checked out the branch. Every changed file would look modified there."""
        for head, where in repository.list_checkouts(self.git.common):
            if head == ref:
                raise Conflict(
                    f"cannot move {ref.removeprefix('refs/heads/')}: it is checked out",
                    where=str(where),
                    hint=f"Run `git switch {self.project.branch}` there, then try again.",
                )

    def _store_files(self, files: Mapping[str, bytes | None]) -> list[TreeEntry]:
        def store(data: bytes) -> str:
            return self.git.run("hash-object", "-w", "--stdin", input=redact_file(data, self.redact)).text

        return [
            TreeEntry(path=repository.encode_path(path), object=None if data is None else store(data))
            for path, data in files.items()
        ]

    def _contains(self, commit: str, ancestor: str) -> bool:
        if commit == ancestor:
            return True
        return self.git.run("merge-base", "--is-ancestor", ancestor, commit, ok=(0, 1)).code == 0

    def _merge_base(self, first: str, second: str) -> str | None:
        return self.git.run("merge-base", first, second, ok=(0, 1)).text or None


def _decode(paths: Iterable[bytes]) -> tuple[str, ...]:
    return tuple(sorted(path.decode("utf-8", "replace") for path in paths))
