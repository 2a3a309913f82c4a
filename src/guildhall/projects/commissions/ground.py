"""What the transitions of commissions stand on: the record, git, and those who execute. It decides nothing."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from guildhall.core.clock import stamp
from guildhall.projects.commissions import records
from guildhall.projects.records import moments, note
from guildhall.projects.workplace import Workplace

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    from guildhall.core.clock import Clock
    from guildhall.core.frame import Frame
    from guildhall.projects.branches import Branches
    from guildhall.projects.commissions.model import Commission
    from guildhall.projects.model import Moment, Project
    from guildhall.projects.registry import Projects
    from guildhall.projects.usable import UsableModels
    from guildhall.projects.worktrees import Worktrees
    from guildhall.runs.asks import Asks
    from guildhall.runs.history import History
    from guildhall.runs.lifecycle import Runs
    from guildhall.store.engine import Store
    from guildhall.workers.model import Worker

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Ground:
    """Handed to every transition."""

    store: Store
    clock: Clock
    history: History
    asks: Asks
    redact: Callable[[str], str]  # a text as it may lie in the repository
    projects: Callable[[], Projects]
    branches: Callable[[Project], Branches]
    worktrees: Worktrees
    runs: Callable[[], Runs]
    alive: Callable[[str], bool]
    find: Callable[[str, Frame], Worker]  # a worker that may be given work
    models: UsableModels
    output_schema: Callable[[Worker, Frame], Awaitable[Mapping[str, Any] | None]]
    frame_at: Callable[[Path], Frame]  # of what the hall does by itself in a folder
    most: Callable[[], int]  # commissions that may be under way in all projects together
    meet: Callable[[Commission, tuple[str, ...]], Awaitable[None]]  # a conflict in these files is to be talked about
    call_off: Callable[[str], Awaitable[None]]  # the meeting about a run's conflict: it is settled otherwise
    readonly: bool = False
    # Two who change the same one do so one after another.
    steering: defaultdict[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))

    def now(self) -> str:
        return stamp(self.clock.now())

    def get(self, id: str) -> Commission:
        return self.store.read(lambda connection: records.get(connection, id))

    def all(self, project: str | None = None) -> list[Commission]:
        return self.store.read(lambda connection: records.listed(connection, project=project))

    def project(self, commission: Commission) -> Project:
        return self.projects().get(commission.project)

    def came_back(self, id: str) -> Commission:
        """A commission as it is once every repository that is registered again has its own back."""
        found = self.get(id)
        registered = self.projects().sound()
        if found.project not in {one.name for one in registered}:
            for one in registered:
                self.branches(one)
        return self.get(id)

    def git(self, commission: Commission) -> Branches:
        return self.branches(self.project(commission))

    def workplace(self, commission: Commission) -> Workplace:
        """Of its last attempt."""
        project = self.project(commission)
        return Workplace(
            project=project,
            branches=self.branches(project),
            worktrees=self.worktrees,
            activity=commission.place,
            branch=commission.branch or "",
            worker=commission.worker,
        )

    def place(self, project: Project, frame: Frame) -> Frame:
        """The frame of what is done for a project: from its folder, with what the caller brings along."""
        return replace(frame, cwd=project.path, root=project.path, worktree=None, interactive=False)

    async def note(self, id: str, reason: str, **data: Any) -> None:
        """A line of the timeline that is no transition."""
        now, reason = self.now(), self.redact(reason)
        await self.store.write(lambda connection: note(connection, id, reason, now, **data))

    def timeline(self, id: str) -> list[Moment]:
        return self.store.read(lambda connection: moments(connection, id))
