"""Where a commission or a meeting is worked on, a checkout and a branch of its own, and how the work comes home.

It is committed on its branch, squashed into the integration branch, and what it needs no more is put away. Each step
finds out by itself that it was done before: whoever comes after a crash makes all of them again.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from guildhall.core.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from guildhall.projects.aside import Aside
    from guildhall.projects.branches import Branches
    from guildhall.projects.model import Project, Scope
    from guildhall.projects.worktrees import Worktrees


@dataclass(frozen=True, kw_only=True)
class Work:
    """What there is of it: where the branch is (None: there is none yet), and what cannot be committed, and why."""

    tip: str | None = None
    left: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, kw_only=True)
class Workplace:
    """Of one meeting, or of one attempt at a commission."""

    project: Project
    branches: Branches
    worktrees: Worktrees
    activity: str  # the name of the checkout
    branch: str
    worker: str  # whose work it is

    @property
    def path(self) -> Path:
        """Where the checkout is, or would be."""
        return self.worktrees.path(self.project, self.activity)

    def tip(self) -> str | None:
        """Where its branch is; None: nobody has worked here yet, or it is put away."""
        return self.branches.git.resolve(self.branch)

    def check_out(self, scope: Scope) -> Path:
        """The checkout: made, or made again where it is gone."""
        return self.worktrees.make(self.project, self.activity, self.branch, scope)

    def keep(self, message: str, wanted: Sequence[str] = ()) -> Work:
        """All that is in the checkout is on the branch, `wanted` paths whether git ignores them or not."""
        left: Sequence[tuple[str, str]] = ()
        with suppress(NotFound):  # there is no checkout: what is on the branch is all there is
            left = self.worktrees.keep(self.project, self.activity, message, self.worker, wanted).left
        return Work(tip=self.tip(), left=left)

    def ignored(self) -> list[str]:
        """What git ignores in the checkout; a folder of which it has nothing ends in a slash."""
        return self.worktrees.ignored(self.project, self.activity)

    def land(self, message: str, also: Mapping[str, bytes | None]) -> None:
        """One commit on the integration branch: all that was done, and what is on record of it."""
        self.branches.keep_up()  # so that what does not fit the user's branch of today is not taken in
        self.branches.squash(self.branch, message, self.worker, also)

    def put_away(self, *, landed: bool) -> Aside | None:
        """The checkout goes: all that was in it is on the branch. One that has `landed` goes where it is kept."""
        aside = self.worktrees.remove(self.project, self.activity)
        if landed and self.tip() is not None:
            self.branches.keep(self.branch)
        return aside
