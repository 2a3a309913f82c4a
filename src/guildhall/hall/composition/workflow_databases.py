"""The parts of a hall whose runs are in databases of their own: `context.config.db` of a workflow (ADR 018).

An annex is a hall in all that is on record: runs, journals, asks, rooms, schedules. Everything else (settings, workers,
trust, memory, keys, processes) is the whole hall's. The home's database says which ones there are.
"""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from guildhall.core.clock import stamp
from guildhall.core.errors import Conflict, GuildError, NotFound
from guildhall.hall.composition.database import Record
from guildhall.hall.composition.hall import Hall
from guildhall.hall.composition.lazy import lazy
from guildhall.hall.composition.locks import LOCK_PATIENCE, lock_database
from guildhall.workflow import records
from guildhall.workflow.instance import OVER

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sqlalchemy import Connection

    from guildhall.core.frame import Frame
    from guildhall.members.members import Members
    from guildhall.memory.service import Memory
    from guildhall.models.model import Source
    from guildhall.runs.execution.memory_compaction import MemoryCompactor
    from guildhall.runs.lifecycle import Runs
    from guildhall.runs.model import ParkCause
    from guildhall.runs.planner import Planner
    from guildhall.runs.supply import Supply
    from guildhall.workers.model import Worker
    from guildhall.workers.registry import Registry
    from guildhall.workers.trust import Pin
    from guildhall.workflow.instance import Instance, Start
    from guildhall.workflow.model import Workflow
    from guildhall.workflow.target import Target


class Annex(Hall):
    """What is on record in one database outside of the home."""

    choose_another = "Name another file in `context.config.db`."

    def __init__(self, whole: Hall, path: Path) -> None:
        self.whole = whole
        self.path = path
        self.environment = whole.environment
        self.runtimes = whole.runtimes
        self.settings = whole.settings
        self.home = whole.home
        self.environ = whole.environ
        self.clock = whole.clock
        self.boot = whole.boot
        self.bus = whole.bus
        self.lives = []
        self.readonly = whole.readonly
        self._open(path, partial(lock_database, path, self.clock), LOCK_PATIENCE)
        self._was = _identity(path)

    @lazy
    def annexes(self) -> Annexes:
        return self.whole.annexes

    def release(self) -> None:
        Record.release(self)  # the other annexes are the whole hall's

    def still_there(self) -> bool:
        """Whether the file is the one that was opened. One that is at work is not let go of."""
        runs = Hall.runs.of(self).peek()
        return _identity(self.path) == self._was or (runs is not None and runs.count > 0)

    @lazy
    def memory(self) -> Memory:
        return self.whole.memory

    @lazy
    def members(self) -> Members:
        return self.whole.members

    @lazy
    def memory_compactor(self) -> MemoryCompactor:
        return self.whole.memory_compactor

    @lazy
    def supply(self) -> Supply:
        return self.whole.supply

    @lazy
    def planner(self) -> Planner:
        return self.whole.planner

    def registry(self, frame: Frame) -> Registry:
        return self.whole.registry(frame)

    def find_worker(self, name: str, frame: Frame) -> Worker:
        return self.whole.find_worker(name, frame)

    def pins(self) -> Mapping[Path, Pin]:
        return self.whole.pins()

    def source(self, model: str, frame: Frame, login: bool = False) -> Source:
        return self.whole.source(model, frame, login)


class Annexes:
    """The annexes of a hall. They are opened when something is looked for that may be there."""

    def __init__(self, hall: Hall) -> None:
        self._hall = hall
        self._known = [Path(path) for path in hall.store.read(records.databases_known)]
        self._annexes: dict[Path, Annex] = {}
        self._opening = asyncio.Lock()

    @property
    def opened(self) -> list[Annex]:
        return list(self._annexes.values())

    def every(self) -> list[Annex]:
        """All that there are. One whose file is gone, or is of no use now, is passed over: `guild doctor` names it."""
        found = (self._usable(path) for path in self._known)
        return [annex for annex in found if isinstance(annex, Annex)]

    def problems(self) -> list[GuildError]:
        """What keeps some of them from being used."""
        found = (self._usable(path) for path in self._known)
        return [error for error in found if isinstance(error, GuildError)]

    def _usable(self, path: Path) -> Annex | GuildError:
        try:
            return self._at(path)
        except GuildError as error:
            return error

    def _at(self, path: Path) -> Annex:
        self._let_go(path)
        if path not in self._annexes:
            if not path.exists():
                hint = "Put it back, and what is on record there is known again."
                raise NotFound("the database of a workflow is gone", where=str(path), hint=hint)
            self._annexes[path] = Annex(self._hall, path)
        return self._annexes[path]

    def _let_go(self, path: Path) -> None:
        """Closes the annex of a file that is gone, or another one now."""
        if path in self._annexes and not self._annexes[path].still_there():
            self._annexes.pop(path).release()

    async def add(self, path: Path) -> Annex:
        """The annex in a file, which is made where it is not there yet."""
        async with self._opening:
            if path not in self._known:
                at = stamp(self._hall.clock.now())
                await self._hall.store.write(lambda connection: records.add_database(connection, str(path), at))
                self._known.append(path)
            self._let_go(path)
            if path not in self._annexes:  # making one takes its time
                self._annexes[path] = await asyncio.to_thread(Annex, self._hall, path)
            return self._annexes[path]

    # all that is open

    def parts(self) -> tuple[Hall, ...]:
        """The hall itself, and the annexes that are open."""
        return (self._hall, *self.opened)

    @property
    def living(self) -> int:
        """How many runs live here that no other one has called."""
        return sum(runs.count for runs in self._built_runs())

    async def park_all(self, cause: ParkCause) -> None:
        for runs in self._built_runs():
            await runs.park_all(cause)

    def release(self) -> None:
        for annex in self.opened:
            annex.release()

    def _built_runs(self) -> list[Runs]:
        built = (Hall.runs.of(part).peek() for part in self.parts())
        return [runs for runs in built if runs is not None]

    # finding

    def where(self, found: Callable[[Connection], bool]) -> Hall:
        """The part in whose database something is found; the whole, where it is in none."""
        if not self._known or self._hall.store.read(found):
            return self._hall
        return next((annex for annex in self.every() if annex.store.read(found)), self._hall)

    def of_team(self, target: Target) -> Hall:
        """The part in which a workflow was started last under a tag."""
        if not self._known:
            return self._hall
        began = {part: _newest(part, target.workflow, target.tag) for part in (self._hall, *self.every())}
        known = {part: instance.created_at for part, instance in began.items() if instance is not None}
        return max(known, key=lambda part: known[part], default=self._hall)

    async def for_workflow(self, workflow: Workflow, start: Start, frame: Frame) -> Hall:
        """The part in which a workflow is to be started: that of the database that its file names, or the whole."""
        from guildhall.workflow.start import check_places, values_of

        there = workflow.frame(frame)
        allowed = self._hall.settings(there).env
        part = self._hall
        if (
            workflow.definition.context.config.db is not None
            and self._hall.environment.policy.may_use_workflow_databases
        ):
            values = values_of(workflow, tag=start.tag, params=start.params, frame=there, allowed=allowed)
            check_places(workflow, values, self._hall.home, there)
            if (path := workflow.database(values)) is not None:
                part = await self.add(path.resolve())
        for other in (self._hall, *self.every()) if self._known else ():
            instance = _newest(other, workflow.name, start.tag)
            if other is not part and instance is not None and instance.status not in OVER:
                raise Conflict(
                    f"{instance.target} is {instance.status} (run {instance.id}), with its record in another database",
                    hint=f"Stop it with `guild stop {instance.target}`, or use --tag.",
                )
        return part


def _newest(part: Hall, name: str, tag: str) -> Instance | None:
    return part.store.read(lambda connection: records.newest(connection, name, tag))


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
