"""The verbs about commissions: the part of `HallClient` that is about work on projects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from guildhall.core.frame import Frame
    from guildhall.projects.commissions.model import Commission, CommissionDetails, Draft


class CommissionClient(Protocol):
    """What can be done with commissions. Each verb gives the commission as it stands then."""

    # without a project: in the one that the frame's folder lies in
    async def commission_new(self, draft: Draft, frame: Frame, *, project: str | None = None) -> Commission: ...

    # one that is under way is cancelled and dispatched again
    async def commission_edit(self, id: str, changes: Mapping[str, Any], frame: Frame) -> Commission: ...

    # in the order of their creation
    async def commissions(self, *, project: str | None = None, status: str | None = None) -> list[Commission]: ...

    async def commission(self, id: str) -> CommissionDetails: ...

    # whether nothing becomes of it before a person has done something; says no after so many seconds
    async def commission_rests(self, id: str, *, within: float) -> bool: ...

    async def commission_dispatch(self, id: str, frame: Frame) -> Commission: ...  # it goes on by itself

    async def commission_redispatch(self, id: str, frame: Frame) -> Commission: ...

    async def commission_cancel(self, id: str, *, reason: str | None = None) -> Commission: ...

    async def commission_abandon(self, id: str, *, reason: str | None = None) -> Commission: ...

    async def commission_delete(self, id: str) -> None: ...  # one that is over, off the record
