"""Service of memory: lists, reads, writes, removes and reverts memory entries for the user.

Does not compact memory: `runs.execution.memory_compaction` does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from guildhall.core.errors import UsageError
from guildhall.hall.client.interface import Memory
from guildhall.hall.composition.hall import HallService
from guildhall.memory.model import PERSON, EntryHistory, Listing, MemoryEntry, Scope

if TYPE_CHECKING:
    from guildhall.core.request_frame import Frame
    from guildhall.memory.folder import MemoryFolder


class MemoryService(HallService, Memory):
    async def list(self, frame: Frame, *, scope: Scope | None = None, worker: str | None = None) -> Listing:
        folders = [self._folder(frame, scope, worker)] if scope else self._folders(frame, worker).values()
        return await asyncio.to_thread(self._hall.memory.list_entries, folders)

    async def get(self, key: str, frame: Frame, *, scope: Scope, worker: str | None = None) -> MemoryEntry:
        return await asyncio.to_thread(self._hall.memory.read, self._folder(frame, scope, worker), key)

    async def write(
        self, key: str, content: str, frame: Frame, *, scope: Scope, worker: str | None = None
    ) -> MemoryEntry:
        folder = self._folder(frame, scope, worker)
        return await asyncio.to_thread(self._hall.memory.write, folder, key, content, PERSON)

    async def remove(self, key: str, frame: Frame, *, scope: Scope, worker: str | None = None) -> MemoryEntry:
        return await asyncio.to_thread(self._hall.memory.remove, self._folder(frame, scope, worker), key, PERSON)

    async def history(self, key: str, frame: Frame, *, scope: Scope, worker: str | None = None) -> EntryHistory:
        return await asyncio.to_thread(self._hall.memory.history, self._folder(frame, scope, worker), key)

    async def revert(
        self, key: str, frame: Frame, *, scope: Scope, worker: str | None = None, to: int | None = None
    ) -> MemoryEntry:
        folder = self._folder(frame, scope, worker)
        return await asyncio.to_thread(self._hall.memory.revert, folder, key, PERSON, change_id=to)

    def _folders(self, frame: Frame, worker: str | None) -> Mapping[Scope, MemoryFolder]:
        found = self._hall.workers.find(worker, frame) if worker is not None else None
        return self._hall.memory.folders(found, frame)

    def _folder(self, frame: Frame, scope: Scope, worker: str | None) -> MemoryFolder:
        folder = self._folders(frame, worker).get(scope)
        if folder is None:
            raise UsageError("the scope 'worker' requires a worker name", hint="Add --worker NAME.")
        return folder
