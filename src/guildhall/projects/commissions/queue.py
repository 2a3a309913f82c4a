"""The queue: so many commissions at a time for each project and in all; the others wait in the order of creation.

Those count that are at work. One that waits for a person, or was parked by one, holds up no other; it goes on at once
when it can, and counts again from then on.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import TYPE_CHECKING

from guildhall.core.errors import GuildError, NotFound
from guildhall.projects.commissions import records
from guildhall.projects.commissions.allowance import waits_for
from guildhall.runs.records import find_run

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from guildhall.core.frame import Frame
    from guildhall.projects.commissions.ground import Ground
    from guildhall.projects.commissions.model import Commission

_log = logging.getLogger("guildhall.commissions")


class Queue:
    """Lets those begin whose turn has come."""

    def __init__(self, ground: Ground, begin: Callable[[str, Frame | None], Awaitable[None]]) -> None:
        self._ground = ground
        self._begin = begin
        self._turn = asyncio.Lock()
        self._frames: dict[str, Frame] = {}  # what those brought along who have dispatched; it is never on record

    def add(self, id: str, frame: Frame) -> None:
        self._frames[id] = frame

    def drop(self, id: str) -> None:
        self._frames.pop(id, None)

    async def turn(self) -> None:
        """Those begin for which there is room, until there is none."""
        async with self._turn:
            tried: set[str] = set()
            while (found := self._next(tried)) is not None:
                tried.add(found.id)
                await self._begin(found.id, self._frames.get(found.id))
                if self._ground.get(found.id).status != "dispatched":  # where it is, its time will come
                    self.drop(found.id)

    def _next(self, tried: set[str]) -> Commission | None:
        under_way = self._ground.store.read(records.under_way)
        working = self._working(under_way)
        if len(working) >= self._ground.most():
            return None
        each = Counter(one.project for one in working)
        for one in under_way:
            if one.status == "dispatched" and one.id not in tried and each[one.project] < self._limit(one):
                return one
        return None

    def why_not_yet(self, commission: Commission) -> list[str]:
        """Why one that is dispatched does not begin."""
        working = self._working(self._ground.store.read(records.under_way))
        here = [one for one in working if one.project == commission.project]
        if len(here) >= self._limit(commission):
            before, where = here, f" of {commission.project}"
        elif len(working) >= self._ground.most():
            before, where = working, ""
        else:
            holders = ", ".join(waits_for(self._ground, commission))
            return [f"it waits for dollars of the manager's budget that are set aside for {holders}"] if holders else []
        names = ", ".join(one.id for one in before)
        return [f"it waits for its turn: as many commissions{where} are at work as may be: {names}"]

    def is_stuck(self, commission: Commission) -> bool:
        """Whether one that is dispatched begins only when a person has seen to others."""
        holders = waits_for(self._ground, commission)
        return bool(holders) and all(self._is_held(self._ground.get(id)) for id in holders)

    def _working(self, under_way: Iterable[Commission]) -> list[Commission]:
        """Those at work: whose run lives, or is about to."""
        return [one for one in under_way if one.status == "in_progress" and not self._is_held(one)]

    def _is_held(self, commission: Commission) -> bool:
        run = self._ground.store.read(lambda connection: find_run(connection, str(commission.run)))
        return commission.held or (run is not None and run.needs_person)

    def _limit(self, commission: Commission) -> int:
        try:
            return self._ground.project(commission).settings.max_commissions
        except NotFound:  # its project is registered no more: it cannot begin, and says so
            return self._ground.most()
        except GuildError as error:  # config.yaml is wrong about it: it waits until that is put right
            _log.warning("%s: %s", commission.id, error)
            return 0
