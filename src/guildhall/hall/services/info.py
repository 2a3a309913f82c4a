"""The service of the hall itself."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from guildhall import __version__
from guildhall.core.errors import GuildError
from guildhall.core.frame import Frame
from guildhall.hall.client.interface import HallInfo, Welcome
from guildhall.hall.composition.hall import Hall

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from guildhall.hall.client.interface import Check


class InfoService(HallInfo):
    def __init__(self, hall: Hall, status: Callable[[], Mapping[str, Any]] | None) -> None:
        """`status` returns the state of the process that serves the hall. An embedded hall has none."""
        self._hall = hall
        self._status = status

    async def hello(self, root: Path) -> Welcome:
        try:
            return Welcome(env=self._hall.settings(Frame(cwd=root, root=root)).env)
        except GuildError as error:
            return Welcome(env=(), problem=error)

    async def status(self) -> dict[str, Any]:
        members = Hall.members.of(self._hall).peek()
        running = {
            "boot": self._hall.boot,
            "version": __version__,
            "runs": self._hall.annexes.living,
            "members": members.standing() if members is not None else [],
        }
        own = self._status() if self._status is not None else {"pid": os.getpid(), "state": "embedded"}
        return {**own, **running}

    async def doctor(self, frame: Frame) -> Sequence[Check]:
        from guildhall.hall.doctor import checks

        return await checks(self._hall, frame)
