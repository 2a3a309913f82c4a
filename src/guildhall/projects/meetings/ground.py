"""What meetings stand on: the project with its checkouts and branches, the runs, and who finds workers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from guildhall.projects.workplace import Workplace

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from guildhall.core.events import EventBus
    from guildhall.core.frame import Frame
    from guildhall.projects.branches import Branches
    from guildhall.projects.meetings.model import Meeting
    from guildhall.projects.model import Project, Scope
    from guildhall.projects.registry import Projects
    from guildhall.projects.usable import UsableModels
    from guildhall.projects.worktrees import Worktrees
    from guildhall.runs.lifecycle import Runs
    from guildhall.workers.model import Worker


@dataclass(frozen=True, kw_only=True)
class Ground:
    """Handed in from above; what is costly is asked for when it is needed."""

    projects: Callable[[], Projects]
    branches: Callable[[Project], Branches]
    worktrees: Worktrees
    runs: Callable[[], Runs]
    alive: Callable[[str], bool]
    bus: EventBus
    redact: Callable[[str], str]  # a text as it may lie in the repository
    find: Callable[[str, Frame], Worker]  # a worker that may be given work
    models: UsableModels
    trusted: Callable[[str, Frame], None]  # raises where the code of a run's worker is trusted no more
    frame_at: Callable[[Path], Frame]  # for what the hall does by itself in a project

    def project(self, meeting: Meeting) -> Project:
        return self.projects().get(meeting.project)

    def workplace(self, meeting: Meeting) -> Workplace:
        project = self.project(meeting)
        return Workplace(
            project=project,
            branches=self.branches(project),
            worktrees=self.worktrees,
            activity=meeting.id,
            branch=meeting.branch or "",
            worker=meeting.worker,
        )

    async def checkout(self, meeting: Meeting, scope: Scope) -> Path:
        """The checkout that a meeting has for itself: made, or made again where it is gone."""
        return await asyncio.to_thread(self._checkout, meeting, scope)

    def _checkout(self, meeting: Meeting, scope: Scope) -> Path:
        place = self.workplace(meeting)
        if place.tip() is None:
            place.branches.keep_up()
        return place.check_out(scope)

    def frame(self, meeting: Meeting, frame: Frame, worktree: Path | None = None) -> Frame:
        """Where a run of a meeting is: in its project, of which it sees its own checkout only."""
        place = self.project(meeting).path
        return replace(frame, cwd=place, root=place, worktree=worktree)
