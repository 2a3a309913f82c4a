"""What every operation on meetings needs: the record, git, the runs and the other services of the hall."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from guildhall.core.clock import stamp
from guildhall.projects.meetings import records
from guildhall.projects.records import moments, transitions
from guildhall.projects.workplace import Workplace

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from guildhall.core.clock import Clock
    from guildhall.core.events import EventBus
    from guildhall.core.frame import Frame
    from guildhall.core.paths import Home
    from guildhall.projects.branches import Branches
    from guildhall.projects.meetings.model import Meeting, Session, UserMessage
    from guildhall.projects.meetings.states import MeetingStatus, Note
    from guildhall.projects.model import Moment, Project, Scope
    from guildhall.projects.registry import Projects
    from guildhall.projects.usable import UsableModels
    from guildhall.projects.worktrees import Worktrees
    from guildhall.runs.history import History
    from guildhall.runs.lifecycle import Runs
    from guildhall.store.engine import Store
    from guildhall.workers.model import Worker


@dataclass(frozen=True, kw_only=True)
class MeetingContext:
    """The collaborators of the meeting operations. It decides nothing."""

    home: Home
    store: Store
    clock: Clock
    history: History
    bus: EventBus
    redact: Callable[[str], str]  # removes secrets from a text that goes into the repository
    projects: Callable[[], Projects]
    branches: Callable[[Project], Branches]
    worktrees: Worktrees
    runs: Callable[[], Runs]
    is_alive: Callable[[str], bool]  # True if this hall executes the run
    find_worker: Callable[[str, Frame], Worker]
    models: UsableModels
    check_trust: Callable[[str, Frame], None]  # raises if the code of a run's worker is no longer trusted
    frame_at: Callable[[Path], Frame]  # the frame of what the hall does on its own in a folder

    def now(self) -> str:
        return stamp(self.clock.now())

    # the record

    def get(self, id: str) -> Meeting:
        return self.store.read(lambda connection: records.get(connection, id))

    def all(self, project: str | None = None, status: MeetingStatus | None = None) -> list[Meeting]:
        """Return meetings, newest first."""
        return self.store.read(lambda connection: records.list_all(connection, project, status))

    def timeline(self, id: str) -> list[Moment]:
        return self.store.read(lambda connection: moments(connection, id))

    def revision(self, id: str) -> int:
        """Return the number of transitions of a meeting."""
        return self.store.read(lambda connection: transitions(connection, id))

    def messages(self, id: str) -> list[UserMessage]:
        return self.store.read(lambda connection: records.messages(connection, id))

    def last_message(self, id: str) -> int:
        """Return the number of the last message of the user, or 0."""
        found = self.messages(id)
        return found[-1].number if found else 0

    def sessions(self, id: str) -> list[Session]:
        return self.store.read(lambda connection: records.sessions(connection, id))

    async def note(self, id: str, kind: Note, text: str, **data: Any) -> None:
        """Append a timeline entry that is not a transition."""
        now = self.now()
        await self.store.write(lambda connection: records.add_note(connection, id, kind, text, now, **data))

    # the project

    def project(self, meeting: Meeting) -> Project:
        return self.projects().get(meeting.project)

    def git(self, meeting: Meeting) -> Branches:
        return self.branches(self.project(meeting))

    def workplace(self, meeting: Meeting) -> Workplace:
        """Return the checkout and branch of a meeting."""
        project = self.project(meeting)
        return Workplace(
            project=project,
            branches=self.branches(project),
            worktrees=self.worktrees,
            activity=meeting.id,
            branch=meeting.branch or "",
            worker=meeting.worker,
        )

    async def check_out(self, meeting: Meeting, scope: Scope) -> Path:
        """Create the checkout of a meeting if it does not exist, and return its path."""

        def check_out() -> Path:
            workplace = self.workplace(meeting)
            if workplace.tip() is None:
                workplace.branches.keep_up()
            return workplace.check_out(scope)

        return await asyncio.to_thread(check_out)

    def project_frame(self, meeting: Meeting, frame: Frame, worktree: Path | None = None) -> Frame:
        """Return the frame of a run of a meeting: its project, with the caller's variables and keys."""
        path = self.project(meeting).path
        return replace(frame, cwd=path, root=path, worktree=worktree)

    def hall_frame(self, meeting: Meeting) -> Frame:
        """Return the frame of what the hall does on its own in the project of a meeting."""
        return self.frame_at(self.project(meeting).path)

    def transcript_path(self, meeting: Meeting) -> Path:
        """Return the path of the transcript, which exists while the meeting is open."""
        return self.home.path / "projects" / meeting.project / "meetings" / f"{meeting.id}.md"
