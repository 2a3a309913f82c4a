"""The service of commissions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from guildhall.core.errors import NotFound
from guildhall.hall.client.interface import Commissions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from guildhall.core.frame import Frame
    from guildhall.hall.composition.hall import Hall
    from guildhall.projects.commissions.model import Commission, CommissionDetails, Draft
    from guildhall.projects.model import Project

_BY_USER = "by the user"
_MAX_WAIT_S = 60.0  # of one call


class CommissionService(Commissions):
    def __init__(self, hall: Hall) -> None:
        self._hall = hall

    async def create(self, draft: Draft, frame: Frame, *, project: str | None = None) -> Commission:
        return await self._hall.commissions.create(self._project(project, frame), draft, frame)

    def _project(self, name: str | None, frame: Frame) -> Project:
        if name is not None:
            return self._hall.projects.get(name)
        if (found := self._hall.projects.at(frame.cwd)) is not None:
            return found
        raise NotFound(
            f"{frame.cwd} lies in no project",
            hint="`guild project add .` registers the repository you are in; or name one: --project NAME.",
        )

    async def edit(self, id: str, changes: Mapping[str, Any], frame: Frame) -> Commission:
        return await self._hall.commissions.edit(id, changes, frame)

    async def list(self, *, project: str | None = None, status: str | None = None) -> Sequence[Commission]:
        from guildhall.projects.commissions.states import parse_status

        wanted = None if status is None else parse_status(status)
        found = await self._hall.commissions.all(project, wanted)
        if project is not None and not found and not await self._hall.commissions.all(project):
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
