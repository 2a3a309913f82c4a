"""Service of trust: lists the code that workers and tests would execute, and grants or revokes trust in it.

Does not check trust at the start of a run: `hall.composition.workers` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from guildhall.core.clock import stamp
from guildhall.hall.client.interface import Trust
from guildhall.hall.composition.hall import HallService
from guildhall.workers import records
from guildhall.workers.model import FileTrust, Pin

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy import Connection

    from guildhall.core.request_frame import Frame
    from guildhall.hall.client.model import TrustReport


class TrustService(HallService, Trust):
    async def inspect(self, frame: Frame, *, at: Path | None = None, worker: str | None = None) -> TrustReport:
        from guildhall.hall.services.code_inspection import inspect_folder, inspect_worker

        if worker is not None:
            return await inspect_worker(self._hall, self._hall.workers.find(worker, frame), frame)
        return await inspect_folder(self._hall, at, frame)

    async def untrusted_callees(self, worker: str, frame: Frame) -> Sequence[str]:
        return self._hall.workers.untrusted_callees(self._hall.workers.find(worker, frame), frame)

    async def grant(self, files: Sequence[FileTrust]) -> None:
        now = stamp(self._hall.clock.now())
        pins = [Pin(path=seen.path, digest=seen.digest, trusted_at=now) for seen in files if seen.state != "gone"]
        gone = [seen.path for seen in files if seen.state == "gone"]

        def write(connection: Connection) -> None:
            records.put_pins(connection, pins)
            records.drop_pins(connection, gone)

        await self._hall.store.write(write)

    async def revoke(self, folder: Path) -> Sequence[Pin]:
        below = self._hall.workers.pins_below(folder)
        await self._hall.store.write(lambda connection: records.drop_pins(connection, [pin.path for pin in below]))
        return below
