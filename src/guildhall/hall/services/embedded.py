"""Embedded hall: opens a hall in this process and offers its services behind the interface.

The HTTP API serves an embedded hall too.
Does not call a hall in another process: `hall.client.remote` does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from guildhall.hall.client.interface import HallClient
from guildhall.hall.composition.hall import Hall
from guildhall.hall.services.health import InfoService
from guildhall.hall.services.jobs import JobService
from guildhall.hall.services.memory import MemoryService
from guildhall.hall.services.projects import CommissionService, MeetingService, ProjectService
from guildhall.hall.services.runs import AskService, RunService
from guildhall.hall.services.trust import TrustService
from guildhall.hall.services.workers import MemberService, PackageService, WorkerService
from guildhall.hall.services.workflows import RoomService, WorkflowService

if TYPE_CHECKING:
    from guildhall.core.events import Event
    from guildhall.core.paths import Home
    from guildhall.hall.client.model import ProcessStatus


async def open_hall(
    home: Home, environ: Mapping[str, str], *, readonly: bool = False, forks_runs: bool = False
) -> EmbeddedHall:
    """Open a hall in this process. Wait for the lock of the home, unless `readonly` is set.

    `forks_runs`: execute each run in a process of its own.
    """
    create = partial(Hall, home, environ=environ, readonly=readonly, forks_runs=forks_runs)
    hall = await asyncio.to_thread(create)  # in a thread, because it waits for the lock
    hall.runtimes.start_fork_server()
    return EmbeddedHall(hall)


class EmbeddedHall(HallClient):
    def __init__(self, hall: Hall, status: Callable[[], ProcessStatus] | None = None) -> None:
        """`status` returns the state of the process that serves the hall."""
        self._hall = hall
        self.runs = RunService(hall)
        self.asks = AskService(hall)
        self.workers = WorkerService(hall)
        self.workflows = WorkflowService(hall)
        self.rooms = RoomService(hall)
        self.jobs = JobService(hall, self.asks.answer)
        self.members = MemberService(hall)
        self.projects = ProjectService(hall)
        self.packages = PackageService(hall)
        self.commissions = CommissionService(hall)
        self.meetings = MeetingService(hall)
        self.memory = MemoryService(hall)
        self.trust = TrustService(hall)
        self.hall = InfoService(hall, status)

    async def wait_background_work(self) -> Sequence[Event]:
        return await self._hall.wait_background_work()

    async def close(self) -> None:
        await self._hall.close()
