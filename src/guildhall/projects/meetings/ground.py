"""What meetings stand on: the project with its checkouts and branches, the runs, and who finds workers."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from guildhall.core.errors import MergeConflict

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from guildhall.core.events import EventBus
    from guildhall.core.frame import Frame
    from guildhall.projects.branches import Branches
    from guildhall.projects.meetings.model import Meeting
    from guildhall.projects.model import Project, Scope
    from guildhall.projects.registry import Projects
    from guildhall.projects.worktrees import Worktrees
    from guildhall.runs.lifecycle import Runs
    from guildhall.workers.model import Worker


def follow(branches: Branches) -> None:
    """The integration branch takes in what the user has done, as far as that can be done."""
    with suppress(MergeConflict):  # what is there already does not fit the user's: a meeting is not to blame for it
        branches.follow()


@dataclass(frozen=True, kw_only=True)
class Ground:
    """Handed in from above; what is costly is asked for when it is needed."""

    projects: Callable[[], Projects]
    branches: Callable[[Project], Branches]
    worktrees: Callable[[], Worktrees]
    runs: Callable[[], Runs]
    alive: Callable[[str], bool]
    bus: EventBus
    redact: Callable[[str], str]  # a text as it may lie in the repository
    find: Callable[[str, Frame], Worker]  # a worker that may be given work
    trusted: Callable[[str, Frame], None]  # raises where the code of a run's worker is trusted no more
    frame_at: Callable[[Path], Frame]  # for what the hall does by itself in a project

    def project(self, meeting: Meeting) -> Project:
        return self.projects().get(meeting.project)

    async def checkout(self, meeting: Meeting, scope: Scope) -> Path:
        """The checkout that a meeting has for itself: made, or made again where it is gone."""
        return await asyncio.to_thread(self._checkout, meeting, scope)

    def _checkout(self, meeting: Meeting, scope: Scope) -> Path:
        assert meeting.branch is not None
        project = self.project(meeting)
        branches = self.branches(project)
        if not branches.exists(meeting.branch):
            follow(branches)
        return self.worktrees().make(project, meeting.id, meeting.branch, scope)

    def frame(self, meeting: Meeting, frame: Frame, worktree: Path | None = None) -> Frame:
        """Where a run of a meeting is: in its project, of which it sees its own checkout only."""
        place = self.project(meeting).path
        return replace(frame, cwd=place, root=place, worktree=worktree)
