"""The verbs about guild members: the part of `HallClient` that is about plug-ins, their tools and their jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from guildhall.core.frame import Frame
    from guildhall.members.model import AtWork, MemberShown


class RosterClient(Protocol):
    """What can be done with members. All but the first two start the member, if it may run."""

    async def members(self, frame: Frame) -> list[MemberShown]: ...  # the wrong ones too, with what is wrong

    async def member(self, name: str, frame: Frame) -> MemberShown: ...

    async def member_new(self, name: str, frame: Frame, *, template: str | None = None) -> Path: ...

    async def member_tools(self, name: str, frame: Frame) -> list[Mapping[str, Any]]: ...  # as a model is shown them

    # what it gives back, as a ToolResult says it
    async def member_call(
        self, name: str, tool: str, arguments: Mapping[str, Any], frame: Frame
    ) -> Mapping[str, Any]: ...

    # its jobs, which are its own: of those the hall knows nothing but what the member says
    async def members_at_work(self) -> list[AtWork]: ...  # jobs of members that go on, as far as is known here
