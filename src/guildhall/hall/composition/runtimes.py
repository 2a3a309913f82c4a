"""What executes the runs of a hall: processes of our own, programs of others, and the doors that those come to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.config import load_settings
from guildhall.hall.composition.database import Record
from guildhall.hall.composition.lazy import lazy
from guildhall.models.keys import joined

if TYPE_CHECKING:
    from collections.abc import Mapping

    from guildhall.core.frame import Frame
    from guildhall.core.paths import Home
    from guildhall.hall.reception import Reception
    from guildhall.runs.boxes import Boxes
    from guildhall.runs.tokens import Tokens
    from guildhall.runtimes.catalog import Row
    from guildhall.runtimes.installed import Programs
    from guildhall.runtimes.model import Runtime
    from guildhall.runtimes.nursery import Nursery
    from guildhall.workers.definition import RuntimeName


class Staff(Record):
    """The part of a hall that has runs executed."""

    starts_programs = True  # of others, that execute runs; a rehearsal needs none
    home: Home
    environ: Mapping[str, str]
    _children: bool  # each run is executed in a process of its own

    @lazy
    def tokens(self) -> Tokens:
        """What opens the doors of live runs from outside."""
        from guildhall.runs.tokens import Tokens

        return Tokens()

    @lazy
    def boxes(self) -> Boxes:
        """What the code of toolboxes says about itself."""
        from guildhall.runs.boxes import Boxes

        return Boxes()

    @lazy
    def reception(self) -> Reception:
        """Where the doors of runs are come to by HTTP."""
        from guildhall.hall.reception import Reception

        return Reception(self.tokens.door)

    def executes(self, runtime: RuntimeName, frame: Frame) -> Runtime:
        """What executes runs between their doors."""
        if runtime == "pydantic" and self.nursery is not None:
            return self._child_runtime
        return self.replays(runtime, frame)

    def replays(self, runtime: RuntimeName, frame: Frame) -> Runtime:
        """The same for runs that are played again: those of our own stay in this process."""
        if runtime == "pydantic":
            from guildhall.runtimes.pydantic import PydanticRuntime

            return PydanticRuntime()
        from guildhall.runtimes.cli import CliRuntime
        from guildhall.runtimes.drivers import driver_of

        programs = self.programs.seen_by(frame.keys)
        return CliRuntime(driver_of(runtime, joined(self.environ, frame.keys)), programs, self.reception.listen)

    def demand_program(self, row: Row, frame: Frame) -> None:
        """Raises where what executes a runtime's runs is not there."""
        if self.starts_programs:
            self.programs.seen_by(frame.keys).demand(row)

    @lazy
    def programs(self) -> Programs:
        """The programs of others that execute runs, as far as they are installed here."""
        from guildhall.runtimes.installed import Programs, Versions

        return Programs(self.environ, Versions(self.home.programs))

    @lazy
    def _child_runtime(self) -> Runtime:
        from guildhall.runtimes.childruntime import ChildRuntime

        assert self.nursery is not None
        self.warm()
        most = load_settings(self.home, self.home.path).hall.run_memory  # the user's own; a project says nothing of it
        return ChildRuntime(self.nursery, memory_bytes=most)

    @lazy
    def nursery(self) -> Nursery | None:
        """Where the processes of runs come from; None: runs are executed here."""
        if not self._children:
            return None
        from guildhall.runtimes.nursery import Nursery, available

        return Nursery() if available() else None

    def warm(self) -> None:
        """Starts what processes of runs come from, so that the first need not wait long; returns at once.

        To be called in the thread that the hall lives in.
        """
        if self.nursery is not None:
            self.nursery.start()
