"""The verbs about commissions, carried out in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from guildhall.core.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Mapping

    from guildhall.core.frame import Frame
    from guildhall.hall.composition.hall import Hall
    from guildhall.projects.commissions.model import Commission, CommissionDetails, Draft
    from guildhall.projects.model import Project

_PERSON = "by the user"
_LONGEST = 60.0  # seconds that one question may take


class CommissionVerbs:
    """That part of a hall inside this process."""

    _hall: Hall

    async def commission_new(self, draft: Draft, frame: Frame, *, project: str | None = None) -> Commission:
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

    async def commission_edit(self, id: str, changes: Mapping[str, Any], frame: Frame) -> Commission:
        return await self._hall.commissions.edit(id, changes, frame)

    async def commissions(self, *, project: str | None = None, status: str | None = None) -> list[Commission]:
        from guildhall.projects.commissions.states import parse_status

        wanted = None if status is None else parse_status(status)
        found = await self._hall.commissions.all(project, wanted)
        if project is not None and not found and not await self._hall.commissions.all(project):
            self._hall.projects.get(project)  # there may be some of one that is registered no more
        return found

    async def commission(self, id: str) -> CommissionDetails:
        return await self._hall.commissions.details(id)

    async def commission_rests(self, id: str, *, within: float) -> bool:
        return await self._hall.commissions.wait_idle([id], min(max(0.0, within), _LONGEST))

    async def commission_dispatch(self, id: str, frame: Frame) -> Commission:
        return await self._hall.commissions.dispatch(id, frame)

    async def commission_redispatch(self, id: str, frame: Frame) -> Commission:
        return await self._hall.commissions.redispatch(id, frame)

    async def commission_cancel(self, id: str, *, reason: str | None = None) -> Commission:
        return await self._hall.commissions.cancel(id, _PERSON if reason is None else reason)

    async def commission_abandon(self, id: str, *, reason: str | None = None) -> Commission:
        return await self._hall.commissions.abandon(id, _PERSON if reason is None else reason)

    async def commission_delete(self, id: str) -> None:
        await self._hall.commissions.delete(id)
