"""The commission context: gives the commission operations the store, git, the runs and the hall's services.

Does not decide anything: the operations are in `attempts.py`, `drafts.py` and `completion.py`.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from guildhall.core.errors import Conflict, GuildError, NotFound
from guildhall.projects.commissions import records
from guildhall.projects.commissions.states import Hold, HoldKind, Note
from guildhall.projects.workspace import ProjectContext
from guildhall.runs.purpose import CommissionPurpose
from guildhall.runs.record.records import find_run

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from sqlalchemy import Connection

    from guildhall.core.request_frame import Frame
    from guildhall.projects.commissions.model import Commission
    from guildhall.projects.model import Project, TimelineEntry
    from guildhall.runs.asks import Asks
    from guildhall.runs.model import Run
    from guildhall.workers.model import Worker


@dataclass(frozen=True, kw_only=True)
class CommissionContext(ProjectContext):
    """The collaborators of the commission operations. It decides nothing."""

    asks: Asks
    output_schema: Callable[[Worker, Frame], Awaitable[Mapping[str, Any] | None]]
    max_running: Callable[[], int]  # commissions at a time, over all projects
    request_meeting: Callable[[Commission], Awaitable[None]]  # about a merge conflict
    decline_meeting: Callable[[str], Awaitable[None]]  # about the conflict of this run, which is resolved
    readonly: bool = False
    # Serialises the operations on one commission.
    locks: defaultdict[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))

    # the record

    def get(self, id: str) -> Commission:
        return self.store.read(lambda connection: records.get(connection, id))

    def all(self, project: str | None = None) -> list[Commission]:
        return self.store.read(lambda connection: records.list_all(connection, project=project))

    def find_run(self, run: str | None) -> Run | None:
        return self.store.read(lambda connection: find_run(connection, run)) if run is not None else None

    def runs_of_attempts(self, timeline: Iterable[TimelineEntry]) -> list[Run]:
        """Return the recorded runs of all attempts, oldest first."""
        ids = [entry.data["run"] for entry in timeline if entry.kind == "start"]
        return [run for id in ids if (run := self.find_run(id)) is not None]

    def commission_of(self, run: str) -> Commission:
        """Return the commission that a run works on or reviews. Raise Conflict if it was deleted."""
        try:
            return self.get(self.history.purpose(run, CommissionPurpose).id)
        except NotFound as error:
            raise Conflict(f"{error.message}: it was deleted", hint="Create a new commission.") from None

    async def note(self, id: str, kind: Note, text: str, **data: Any) -> None:
        """Append a timeline entry that is not a transition."""
        now, text = self.now(), self.redact(text)
        await self.store.write(lambda connection: records.add_note(connection, id, kind, text, now, **data))

    async def hold(self, id: str, kind: HoldKind, error: GuildError) -> None:
        """Record why a commission in progress cannot continue. The same hold again changes nothing."""
        hold, now = Hold.from_error(kind, error), self.now()

        def write(connection: Connection) -> None:
            found = records.find(connection, id)
            if found is None or found.status != "in_progress" or found.hold == hold:
                return
            records.change(connection, id, now, hold=hold)
            records.add_note(connection, id, "hold", hold.text(id), now, error=error.as_dict())

        await self.store.write(write)

    async def release(self, id: str) -> None:
        """Clear the hold of a commission that continues."""
        if self.get(id).hold is not None:
            await self.store.write(lambda connection: records.change(connection, id, self.now(), hold=None))

    # the project

    def project_frame(self, project: Project, frame: Frame) -> Frame:
        """Return the frame for work on a project: its folder, with the caller's variables and keys."""
        return replace(frame, cwd=project.path, root=project.path, worktree=None, interactive=False)

    def reclaim(self, id: str) -> Commission:
        """Return a commission after re-registered repositories have claimed their records."""
        found = self.get(id)
        registered = self.projects().list_valid()
        if found.project not in {project.name for project in registered}:
            for project in registered:
                self.branches(project)  # claims the records of this repository
        return self.get(id)
