"""What people say about a commission that has ended: what is to become of a conflict, or an answer that came late."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from guildhall.core.errors import Conflict, GuildError, NotFound
from guildhall.jobs.inquiry import said
from guildhall.projects.commissions import records
from guildhall.projects.commissions.conflict import KIND, applied, said_so_far, still_open
from guildhall.projects.commissions.model import RESTS
from guildhall.projects.commissions.projection import project_row

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from typing import Any

    from guildhall.core.frame import Frame
    from guildhall.projects.commissions.ground import Ground
    from guildhall.projects.commissions.model import Commission
    from guildhall.runs.model import Answer, Ask

_log = logging.getLogger("guildhall.commissions")


def commission_told(ground: Ground, told: Mapping[str, Any]) -> Commission:
    """The commission of a run, by what the run was asked for."""
    try:
        return ground.get(str(told["id"]))
    except NotFound as error:
        raise Conflict(f"{error.message} any more", hint="Make a new one.") from None


@dataclass(frozen=True, kw_only=True)
class Answering:
    """Does what was said, once. What could not be done can be said again."""

    ground: Ground
    redispatch: Callable[[str, Frame], Awaitable[Commission]]
    abandon: Callable[[str, str], Awaitable[Commission]]

    async def hear(self, ask: Ask) -> None:
        """A person has said what is to become of work that could not be merged, or has answered after the end."""
        told = self.ground.history.get(ask.run).request.get("commission")
        if not told or ask.answer is None:
            return
        if ask.kind == "question":
            self.ground.redact(said(ask))
            await self._hear_late(str(told["id"]))
        elif ask.kind == KIND:
            try:
                await self._settle(ask, ask.answer, commission_told(self.ground, told))
            except GuildError:
                await self.ground.store.write(lambda connection: still_open(connection, ask.id))
                raise
            await self.ground.store.write(lambda connection: applied(connection, ask.id))

    async def catch_up(self) -> None:
        """A hall may have died between what was said and what was to come of it."""
        for ask in self.ground.store.read(said_so_far):
            try:
                await self.hear(ask)
            except GuildError as error:
                _log.warning("%s is open again: %s", ask.id, error)

    async def _settle(self, ask: Ask, answer: Answer, commission: Commission) -> None:
        if commission.run != ask.run or commission.status != "failed":
            return
        if answer.choice == "redispatch":
            place = self.ground.project(commission).path
            await self.redispatch(commission.id, self.ground.frame_at(place))
        elif answer.choice == "abandon":
            await self.abandon(commission.id, answer.note or "it could not be merged")

    async def _hear_late(self, id: str) -> None:
        """Nobody hears an answer after the end, but the artifact has it."""
        found = self.ground.store.read(lambda connection: records.find(connection, id))
        if found is not None and found.status in RESTS:
            await project_row(self.ground, id)
