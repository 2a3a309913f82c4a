"""The workspace of a commission or meeting: its checkout, branch and merge, and the check of its worker's model.

The work is committed on its branch, squashed into the integration branch, and then the checkout is removed. Also adds
the file tools and instructions to a worker in a checkout.
Does not call git (`git/worktrees.py`, `git/integration.py`) and does not decide when to merge
(`commissions/completion.py`, `meetings/close.py`).

Invariant: each step detects that it was done before, so all steps can be repeated after a crash.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from guildhall.activities.contract import READING, WRITING
from guildhall.core.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from guildhall.projects.git.integration import Branches
    from guildhall.projects.git.snapshot import Aside
    from guildhall.projects.git.worktrees import Worktrees
    from guildhall.projects.model import Project, Scope
    from guildhall.workers.model import Worker


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


FILES = (*READING, *WRITING)  # that it has without declaring them


def in_checkout(worker: Worker, how_to: str) -> Worker:
    """The worker as it is there. No schema is its own: where a result has a form, the seat tells it."""
    definition = worker.definition
    declared = [name for name in definition.tools if name not in FILES]
    changed = {"tools": (*FILES, *declared), "output_schema_ref": None}
    told = f"{worker.instructions.rstrip()}\n\n{how_to}\n"
    return replace(worker, definition=definition.model_copy(update=changed), instructions=told)
