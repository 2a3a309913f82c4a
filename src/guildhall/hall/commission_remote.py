"""The verbs about commissions, asked for over HTTP."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from guildhall.core.frame import Frame
    from guildhall.projects.commissions.model import Commission, CommissionDetails, Draft


class RemoteCommissions(ABC):
    """That part of a remote hall."""

    @abstractmethod
    async def _call(self, name: str, /, **arguments: Any) -> Any: ...

    async def commission_new(self, draft: Draft, frame: Frame, *, project: str | None = None) -> Commission:
        return await self._call("commission_new", draft=draft, frame=frame, project=project)

    async def commission_edit(self, id: str, changes: Mapping[str, Any], frame: Frame) -> Commission:
        return await self._call("commission_edit", id=id, changes=changes, frame=frame)

    async def commissions(self, *, project: str | None = None, status: str | None = None) -> list[Commission]:
        return await self._call("commissions", project=project, status=status)

    async def commission(self, id: str) -> CommissionDetails:
        return await self._call("commission", id=id)

    async def commission_rests(self, id: str, *, within: float) -> bool:
        return await self._call("commission_rests", id=id, within=within)

    async def commission_dispatch(self, id: str, frame: Frame) -> Commission:
        return await self._call("commission_dispatch", id=id, frame=frame)

    async def commission_redispatch(self, id: str, frame: Frame) -> Commission:
        return await self._call("commission_redispatch", id=id, frame=frame)

    async def commission_cancel(self, id: str, *, reason: str | None = None) -> Commission:
        return await self._call("commission_cancel", id=id, reason=reason)

    async def commission_abandon(self, id: str, *, reason: str | None = None) -> Commission:
        return await self._call("commission_abandon", id=id, reason=reason)

    async def commission_delete(self, id: str) -> None:
        await self._call("commission_delete", id=id)
