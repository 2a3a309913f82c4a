"""Services of projects, commissions and meetings: call the project packages in the name of the user.

Does not contain state transitions: `projects.commissions.states` and `projects.meetings.states` do.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from guildhall.core.errors import NotFound, UsageError
from guildhall.core.ids import is_name
from guildhall.hall.client.interface import Commissions, Meetings, Projects
from guildhall.hall.composition.hall import HallService
from guildhall.projects.commissions.model import Commission, CommissionDetails, Draft, check_reason
from guildhall.projects.commissions.states import parse_status

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.events import Event
    from guildhall.core.request_frame import Frame
    from guildhall.projects.meetings.model import Meeting, MeetingDetails
    from guildhall.projects.meetings.states import MeetingStatus
    from guildhall.projects.model import Problem, Project, ProjectEntry


class ProjectService(HallService, Projects):
    async def list(self) -> Sequence[ProjectEntry]:
        entries = await asyncio.to_thread(self._hall.projects.list_entries)
        unfinished_work = self._hall.project_services.unfinished_work
        return [replace(entry, unfinished=unfinished_work(entry.name)) for entry in entries]

    async def add(self, path: Path, *, name: str | None = None, branch: str | None = None) -> Project:
        if not path.is_absolute() or "\0" in str(path):
            raise UsageError("path: expected an absolute path")
        return await asyncio.to_thread(self._hall.project_services.add_project, path, name, branch)

    async def remove(self, name: str) -> ProjectEntry:
        self._hall.projects.get_entry(name)
        if is_name(name):
            self._hall.project_services.check_removable(name)
        return await asyncio.to_thread(self._hall.project_services.remove_project, name)

    async def check(self, name: str) -> Sequence[Problem]:
        return await asyncio.to_thread(self._hall.project_services.check_project, name)


_BY_USER = "by the user"
_MAX_WAIT_S = 60.0


class CommissionService(HallService, Commissions):
    async def create(self, draft: Draft, frame: Frame, *, project: str | None = None) -> Commission:
        return await self._hall.commissions.create(self._get_project(project, frame), draft, frame)

    def _get_project(self, name: str | None, frame: Frame) -> Project:
        if name is not None:
            return self._hall.projects.get(name)
        if (project := self._hall.projects.find_at(frame.cwd)) is not None:
            return project
        hint = "Register this repository with `guild project add .`, or use --project NAME."
        raise NotFound(f"cannot create a commission: {frame.cwd} is not in a project", hint=hint)

    async def edit(self, id: str, changes: Mapping[str, Any], frame: Frame) -> Commission:
        return await self._hall.commissions.edit(id, changes, frame)

    async def list(self, *, project: str | None = None, status: str | None = None) -> Sequence[Commission]:
        parsed_status = None if status is None else parse_status(status)
        found = await self._hall.commissions.list_commissions(project, parsed_status)
        if project is not None and not found and not await self._hall.commissions.list_commissions(project):
            self._hall.projects.get(project)  # raises, unless the project is registered or was
        return found

    async def get(self, id: str) -> CommissionDetails:
        return await self._hall.commissions.details(id)

    async def wait_idle(self, id: str, *, within: float) -> bool:
        return await self._hall.commissions.wait_idle([id], min(max(0.0, within), _MAX_WAIT_S))

    async def dispatch(self, id: str, frame: Frame) -> Commission:
        return await self._hall.commissions.dispatch(id, frame)

    async def redispatch(self, id: str, frame: Frame) -> Commission:
        return await self._hall.commissions.redispatch(id, frame)

    async def cancel(self, id: str, *, reason: str | None = None) -> Commission:
        return await self._hall.commissions.cancel(id, _BY_USER if reason is None else reason)

    async def abandon(self, id: str, *, reason: str | None = None) -> Commission:
        return await self._hall.commissions.abandon(id, _BY_USER if reason is None else reason)

    async def delete(self, id: str) -> None:
        await self._hall.commissions.delete(id)


class MeetingService(HallService, Meetings):
    async def list(self, *, project: str | None = None, status: MeetingStatus | None = None) -> Sequence[Meeting]:
        meetings = self._hall.meetings
        found = meetings.list_meetings(project, status)
        if project is not None and not found and not meetings.list_meetings(project):
            self._hall.projects.get(project)  # raises, unless the project is registered or was
        return found

    async def get(self, id: str) -> MeetingDetails:
        return await self._hall.meetings.details(id)

    async def open(
        self,
        worker: str,
        message: str,
        frame: Frame,
        *,
        project: str | None = None,
        max_turns: int | None = None,
        max_tokens: int | None = None,
        budget: float | None = None,
    ) -> Meeting:
        limits = {"max_turns": max_turns, "max_tokens": max_tokens, "budget": budget}
        return await self._hall.meetings.open(worker, message, frame, project=project, **limits)

    def join(
        self,
        id: str,
        frame: Frame,
        *,
        messages: Sequence[str] = (),
        renew: bool = False,
        max_turns: int | None = None,
        max_tokens: int | None = None,
        budget: float | None = None,
    ) -> AsyncGenerator[Event]:
        from guildhall.runs.execution.preparation import Grant

        wanted = Grant(max_turns=max_turns, max_tokens=max_tokens, budget=budget)
        grant = None if wanted == Grant() else wanted
        is_daemon = self._hall.is_persistent
        return self._hall.meetings.join(id, frame, messages=messages, renew=renew, grant=grant, is_daemon=is_daemon)

    async def interrupt(self, id: str) -> None:
        await self._hall.meetings.interrupt(id)

    async def accept(self, id: str) -> Meeting:
        return await self._hall.meetings.accept(id)

    async def decline(self, id: str, *, reason: str | None = None) -> Meeting:
        return await self._hall.meetings.decline(id, None if reason is None else check_reason(reason))

    async def defer(self, id: str, until: str) -> Meeting:
        return await self._hall.meetings.defer(id, until)

    async def close(self, id: str, frame: Frame, *, summarise: bool = True, leave_work: bool = False) -> Meeting:
        return await self._hall.meetings.close_meeting(id, frame, summarise=summarise, leave_work=leave_work)

    async def delete(self, id: str) -> None:
        await self._hall.meetings.delete(id)
