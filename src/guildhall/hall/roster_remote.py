"""The verbs about guild members, asked for over HTTP."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from guildhall.core.frame import Frame
    from guildhall.members.model import AtWork, MemberShown


class RemoteRoster(ABC):
    """That part of a remote hall."""

    @abstractmethod
    async def _call(self, name: str, /, **arguments: Any) -> Any: ...

    async def members(self, frame: Frame) -> list[MemberShown]:
        return await self._call("members", frame=frame)

    async def member(self, name: str, frame: Frame) -> MemberShown:
        return await self._call("member", name=name, frame=frame)

    async def member_new(self, name: str, frame: Frame, *, template: str | None = None) -> Path:
        return await self._call("member_new", name=name, frame=frame, template=template)

    async def member_tools(self, name: str, frame: Frame) -> list[Mapping[str, Any]]:
        return await self._call("member_tools", name=name, frame=frame)

    async def member_call(self, name: str, tool: str, arguments: Mapping[str, Any], frame: Frame) -> Mapping[str, Any]:
        return await self._call("member_call", name=name, tool=tool, arguments=arguments, frame=frame)

    async def members_at_work(self) -> list[AtWork]:
        return await self._call("members_at_work")
