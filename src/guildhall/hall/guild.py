"""What the guild works for: the projects of a home, their branches and worktrees, and what workers are given there."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from guildhall.hall.staff import Staff

if TYPE_CHECKING:
    from collections.abc import Mapping

    from guildhall.core.frame import Frame
    from guildhall.projects.branches import Branches
    from guildhall.projects.git import Git
    from guildhall.projects.model import Project
    from guildhall.projects.registry import Projects
    from guildhall.projects.worktrees import Worktrees
    from guildhall.runs.lifecycle import Runs
    from guildhall.runs.seat import Seating
    from guildhall.tools.model import Tool
    from guildhall.workers.model import Worker


class Guild(Staff):
    """The part of a hall that has projects."""

    if TYPE_CHECKING:

        @cached_property
        def runs(self) -> Runs: ...

    @cached_property
    def projects(self) -> Projects:
        from guildhall.projects.registry import Projects

        return Projects(self.home)

    def git(self, project: Project) -> Git:
        """Git for a project's repository."""
        from guildhall.projects.git import Git

        key = (project.name, project.path)
        if key not in self._gits:
            self._gits[key] = Git(project.path, self.home.desks / project.name)
        return self._gits[key]

    @cached_property
    def _gits(self) -> dict[Any, Git]:
        return {}

    def branches(self, project: Project) -> Branches:
        """The hall's branches of a project."""
        from guildhall.projects.branches import Branches

        return Branches(project, self.git(project))

    @cached_property
    def worktrees(self) -> Worktrees:
        from guildhall.projects.worktrees import Worktrees

        return Worktrees(self.home, self.git)

    def living(self, project: str) -> tuple[str, ...]:
        """The commissions and meetings of a project that have not ended, and whatever else has a worktree there."""
        from guildhall.projects.records import living

        on_record = self.store.read(lambda connection: living(connection, project))
        return tuple(dict.fromkeys((*on_record, *self.worktrees.activities(project))))

    def seating(self, request: Mapping[str, Any]) -> Seating | None:
        """Who has given a run its seat that was asked for like this; None: nobody, or a workflow."""
        return None

    def seatings(self) -> tuple[Seating, ...]:
        """All who give runs a seat of their own."""
        return ()

    def provided(self, worker: Worker, frame: Frame, run: str) -> tuple[Tool, ...]:
        """What a worker is given where it works without its declaring it, beside the base toolbox."""
        project = self.projects.at(frame.root)
        return self.artifact_tools(project, worker.name, frame) if project is not None else ()

    def artifact_tools(self, project: Project, author: str, frame: Frame) -> tuple[Tool, ...]:
        """The tools for a project's artifacts: those of the request's own checkout, or of the integration branch."""
        from guildhall.projects.artifacts import Artifacts, InWorktree, OnBranch
        from guildhall.projects.toolbox import artifact_toolbox

        own = frame.worktree
        shelf = OnBranch(self.branches(project), author) if own is None else InWorktree(own)
        return artifact_toolbox(Artifacts(shelf), lambda: self.clock.now().date().isoformat()).tools
