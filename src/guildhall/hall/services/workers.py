"""The service of workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.clock import stamp
from guildhall.hall.client.interface import Workers
from guildhall.workers import lifecycle, records
from guildhall.workers.model import WORKERS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from guildhall.core.frame import Frame
    from guildhall.hall.client.interface import Checked
    from guildhall.hall.composition.hall import Hall
    from guildhall.workers.model import Listed, Worker


class WorkerService(Workers):
    def __init__(self, hall: Hall) -> None:
        self._hall = hall

    async def list(self, frame: Frame) -> Sequence[Listed]:
        return self._hall.registry(frame).listed()

    async def get(self, name: str, frame: Frame) -> Worker:
        return self._hall.find_worker(name, frame)

    async def check(self, name: str, frame: Frame) -> Checked:
        from guildhall.hall.doctor import checked_whole

        return await checked_whole(self._hall, self._hall.find_worker(name, frame), frame)

    async def create(self, name: str, frame: Frame, *, force: bool = False) -> Path:
        locks = self._hall.store.read(records.all_locks)
        path = lifecycle.new(frame.root / WORKERS, name, locks=locks, force=force)
        await self._hall.store.write(lambda connection: records.drop_lock(connection, path))
        return path

    async def lock(self, name: str, frame: Frame) -> Worker:
        worker = self._hall.registry(frame).find(name, frame.cwd)
        pin = lifecycle.lock(worker, stamp(self._hall.clock.now()))
        await self._hall.store.write(lambda connection: records.put_lock(connection, pin))
        return self._hall.find_worker(name, frame)

    async def unlock(self, name: str, frame: Frame) -> Worker:
        worker = lifecycle.unlock(self._hall.find_worker(name, frame))
        if (path := worker.path) is not None:
            await self._hall.store.write(lambda connection: records.drop_lock(connection, path))
        return worker

    async def promote(self, name: str, frame: Frame) -> Worker:
        return lifecycle.promote(self._hall.find_worker(name, frame))

    async def retire(self, name: str, frame: Frame) -> Worker:
        return lifecycle.retire(self._hall.find_worker(name, frame))
