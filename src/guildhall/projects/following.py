"""Following the user's branch when the user has taken the work over as one commit.

A pull request that was squash-merged leaves the user's branch with the same content and another history. Where the user
goes on from there, git alone would see both sides change the same places. So that commit is found again by its tree,
and counted as a merge of what it took over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.projects import trees

if TYPE_CHECKING:
    from guildhall.projects.git import Git
    from guildhall.projects.trees import Merged

_LOOKED_AT = 500  # commits of each side
_TRIED = (5, 20)  # commits of ours and of the user's that are merged to see whether that gives the user's


def with_users(git: Git, now: str, user: str) -> Merged:
    """The integration branch merged with the user's."""
    merged = trees.merge(git, now, user)
    if not merged.conflicts:
        return merged
    found = _taken_over(git, now, user)
    if found is None:
        return merged
    ours, theirs, tree = found
    joint = trees.commit(git, tree, [ours, theirs], "Taken over\n")
    ahead = trees.merge(git, now, joint)
    if ahead.conflicts:
        return merged
    base = trees.commit(git, ahead.tree, [now, joint], "Taken over\n")
    return trees.merge(git, base, user)


def _taken_over(git: Git, now: str, user: str) -> tuple[str, str, str] | None:
    """A commit of ours, the one of the user's that has taken it over, and the tree of that."""
    ours, theirs = _side(git, now, user), _side(git, user, now)
    by_tree = {tree: commit for commit, tree in reversed(ours)}
    for commit, tree in theirs:
        if tree in by_tree:
            return by_tree[tree], commit, tree
    for commit, tree in theirs[: _TRIED[1]]:
        before = git.run("rev-parse", "--verify", "--quiet", f"{commit}^", ok=(0, 1, 128)).line
        for one, _ in ours[: _TRIED[0]] if before else ():
            tried = trees.merge(git, before, one)
            if tried.tree == tree and not tried.conflicts:
                return one, commit, tree
    return None


def _side(git: Git, tip: str, other: str) -> list[tuple[str, str]]:
    """The commits, with their trees, that one side has and the other has not; newest first."""
    told = git.run("log", "--first-parent", f"--max-count={_LOOKED_AT}", "--format=%H %T", tip, f"^{other}").line
    pairs = (line.split() for line in told.splitlines())
    return [(commit, tree) for commit, tree in pairs]
