"""The queue: so many commissions at a time for each project and in all; the others wait in the order of creation."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import TYPE_CHECKING

from guildhall.core.errors import GuildError, NotFound
from guildhall.projects.commissions import records

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

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
                await self._begin(found.id, self._frames.pop(found.id, None))

    def _next(self, tried: set[str]) -> Commission | None:
        under_way = self._ground.store.read(records.under_way)
        working = [one for one in under_way if one.status == "in_progress"]
        if len(working) >= self._ground.most():
            return None
        each = Counter(one.project for one in working)
        for one in under_way:
            if one.status == "dispatched" and one.id not in tried and each[one.project] < self._limit(one):
                return one
        return None

    def why_not_yet(self, commission: Commission) -> list[str]:
        """Why one that is dispatched does not begin; who waits for a person holds its place too."""
        under_way = self._ground.store.read(records.under_way)
        working = [one for one in under_way if one.status == "in_progress"]
        here = [one for one in working if one.project == commission.project]
        if len(here) >= self._limit(commission):
            before, where = here, f" of {commission.project}"
        elif len(working) >= self._ground.most():
            before, where = working, ""
        else:
            return []
        told = f"it waits for its turn: {len(before)} commissions{where} are under way, and no more may be"
        held = [one.id for one in before if one.run and self._is_held(one.run)]
        return [f"{told}; a person is asked by {', '.join(held)}: guild ls" if held else told]

    def _is_held(self, run: str) -> bool:
        return self._ground.history.get(run).status == "waiting"

    def _limit(self, commission: Commission) -> int:
        try:
            return self._ground.project(commission).settings.max_commissions
        except NotFound:  # its project is registered no more: it cannot begin, and says so
            return self._ground.most()
        except GuildError as error:  # config.yaml is wrong about it: it waits until that is put right
            _log.warning("%s: %s", commission.id, error)
            return 0
