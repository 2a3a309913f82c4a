"""The verbs about guild members, carried out in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from guildhall.core.errors import NotFound
from guildhall.core.nearest import did_you_mean
from guildhall.hall.composition.hall import Hall

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from guildhall.core.frame import Frame
    from guildhall.members.model import AtWork, MemberShown


class RosterVerbs:
    """That part of a hall inside this process."""

    _hall: Hall

    async def members(self, frame: Frame) -> list[MemberShown]:
        found = self._hall.members
        return [found.shown(member) for member in found.roster(frame).listed()]

    async def member(self, name: str, frame: Frame) -> MemberShown:
        return self._hall.members.shown(self._hall.members.find(name, frame))

    async def member_new(self, name: str, frame: Frame, *, template: str | None = None) -> Path:
        from guildhall.members.create import new_member

        return new_member(frame.root, name, template)

    async def member_tools(self, name: str, frame: Frame) -> list[Mapping[str, Any]]:
        async with self._hall.members.connected(name, frame) as server:
            return [tool.as_shown() for tool in server.offered]

    async def member_call(self, name: str, tool: str, arguments: Mapping[str, Any], frame: Frame) -> Mapping[str, Any]:
        async with self._hall.members.connected(name, frame) as server:
            known = [one.name for one in server.offered]
            if tool not in known:
                raise NotFound(f"the member {name} has no tool {tool!r}", hint=did_you_mean(tool, known))
            return (await server.call(tool, arguments)).as_dict()

    async def members_at_work(self) -> list[AtWork]:
        members = Hall.members.of(self._hall).peek()
        return members.at_work() if members is not None else []
