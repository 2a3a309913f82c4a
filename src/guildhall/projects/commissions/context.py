"""The commission context: the collaborators of the commission operations, and queries about commissions.

Does not contain the operations (`attempts.py`, `drafts.py`, `completion.py`).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from guildhall.core.errors import Conflict, GuildError, NotFound
from guildhall.projects.commissions import records
from guildhall.projects.commissions.states import Hold, HoldKind, Note
from guildhall.projects.workspace import ProjectContext
from guildhall.runs.purpose import CommissionPurpose
from guildhall.runs.record.records import find_run

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from guildhall.core.request_frame import Frame
    from guildhall.projects.commissions.model import Commission
    from guildhall.projects.model import Project, TimelineEntry
    from guildhall.runs.asks import Asks
    from guildhall.runs.model import Run
    from guildhall.workers.model import Worker


@dataclass(frozen=True, kw_only=True)
class CommissionContext(ProjectContext):
    """The collaborators of the commission operations."""

    asks: Asks
    load_output_schema: Callable[[Worker, Frame], Awaitable[Mapping[str, Any] | None]]
    max_running: Callable[[], int]  # maximum of running commissions, over all projects
    request_meeting: Callable[[Commission], Awaitable[None]]  # about a merge conflict
    withdraw_meeting: Callable[[str], Awaitable[None]]  # about the merge conflict of a run
    readonly: bool = False
    # Serialises the operations on one commission.
    locks: defaultdict[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))

    # records

    def get(self, id: str) -> Commission:
        return self.store.read(lambda connection: records.get(connection, id))

    def list_commissions(self, project: str | None = None) -> list[Commission]:
        return self.store.read(lambda connection: records.list_commissions(connection, project=project))

    def find_run(self, run: str | None) -> Run | None:
        return self.store.read(lambda connection: find_run(connection, run)) if run is not None else None

    def runs_of_attempts(self, timeline: Iterable[TimelineEntry]) -> list[Run]:
        """Return the recorded runs of all attempts, oldest first."""
        ids = [entry.data["run"] for entry in timeline if entry.kind == "start"]
        return [run for id in ids if (run := self.find_run(id)) is not None]

    def commission_of(self, run: str) -> Commission:
        """Return the commission that a run works on or reviews. Raise Conflict if it was deleted."""
        id = self.history.purpose(run, CommissionPurpose).id
        try:
            return self.get(id)
        except NotFound:
            raise Conflict(f"commission {id} was deleted", hint="Create a new commission.") from None

    async def note(self, id: str, kind: Note, text: str, **data: Any) -> None:
        """Append a timeline entry that is not a transition."""
        now, text = self.now(), self.redact(text)
        await self.store.write(lambda connection: records.add_note(connection, id, kind, text, now, **data))

    async def hold(self, id: str, kind: HoldKind, error: GuildError) -> None:
        """Put a commission in progress on hold. An equal hold is recorded once."""
        hold, now = Hold.from_error(kind, error), self.now()

        def write(connection: Connection) -> None:
            commission = records.find(connection, id)
            if commission is None or commission.status != "in_progress" or commission.hold == hold:
                return
            records.update_fields(connection, id, now, hold=hold)
            records.add_note(connection, id, "hold", hold.text(id), now, error=error.as_dict())

        await self.store.write(write)

    async def release(self, id: str) -> None:
        """Clear the hold of a commission that continues."""
        if self.get(id).hold is not None:
            await self.store.write(lambda connection: records.update_fields(connection, id, self.now(), hold=None))

    # the project

    def project_frame(self, project: Project, frame: Frame) -> Frame:
        """Return the caller's frame in the folder of a project."""
        return replace(frame, cwd=project.path, root=project.path, worktree=None, interactive=False)

    def reclaim(self, id: str) -> Commission:
        """Return a commission, after claiming the records of all repositories if its project is not registered."""
        commission = self.get(id)
        registered = self.projects().list_valid()
        if commission.project not in {project.name for project in registered}:
            for project in registered:
                self.branches(project)  # claims the records of this repository
        return self.get(id)
