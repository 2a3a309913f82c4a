"""Preparation: creates a run with its row and journal entry 0, or reopens a stopped run.

A prepared run has its assembly, model and limits, and has not started. A reopened run continues at the end of its
journal, with higher limits if the caller grants them.

Does not resolve the parts of a run (`runs.assembly.assembler`) and does not launch it (`runs.execution.runs`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from guildhall.core.clock import Clock, stamp
from guildhall.core.errors import Conflict, ToolUnavailable
from guildhall.core.ids import RUN, new_id
from guildhall.models.catalog import AUTO
from guildhall.models.credentials import WITH_LOGIN
from guildhall.runs.assembly.attachments import check_media_types
from guildhall.runs.assembly.preflight import check_restart
from guildhall.runs.execution.delegation import Unasked
from guildhall.runs.execution.grants import Grant, has_price, priced
from guildhall.runs.limits import in_force, seconds_since_start
from guildhall.runs.model import ENDED, Run, RunRequest
from guildhall.runs.record import records
from guildhall.runs.record.entries import Entry, Listening, Resumed
from guildhall.runs.record.journal import Journal
from guildhall.tools.mcp.client import ended_if_not_used

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy import Connection

    from guildhall.core.frame import Frame, RecordedFrame
    from guildhall.models.model import Source
    from guildhall.runs.assembly.assembled import Assembled
    from guildhall.runs.assembly.assembler import Assembler
    from guildhall.runs.hooks import Seat
    from guildhall.runs.purpose import Purpose
    from guildhall.runs.record.history import History
    from guildhall.runtimes.model import Attachment
    from guildhall.store.engine import Store
    from guildhall.tools.model import Toolbox
    from guildhall.workers.model import Worker

    SourceOf = Callable[[str, Frame, bool], Source]  # the model, and whether a login with Claude will do


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A run that can be launched: all of it is known, nothing has begun."""

    run: str
    root: str
    assembled: Assembled
    source: Source
    frame: Frame
    journal: Journal
    ordinal: int
    given: tuple[Toolbox, ...] = ()  # of the caller's own process, for it and for those that it calls
    override_model: str | None
    purpose: Purpose
    limited: bool  # whoever runs it has set a limit in dollars
    below: tuple[Journal, ...] = ()  # of the runs that it has called before
    seconds_before: float = 0.0
    resumed: bool = False
    seat: Seat | None = None


@dataclass(frozen=True)
class Preparation:
    """Prepares the runs of one hall."""

    store: Store
    clock: Clock
    boot: str
    history: History
    assembler: Assembler
    source_of: SourceOf
    alive: Callable[[str], bool]

    async def prepare(
        self,
        request: RunRequest,
        frame: Frame,
        given: Sequence[Toolbox] = (),
        *,
        worker: Worker | None = None,
        caller: Prepared | None = None,
        call: str | None = None,
        attached: tuple[Attachment, ...] | None = None,
        seat: Seat | None = None,
    ) -> Prepared:
        """Create a run that can be launched. `given`: toolboxes of the caller's process. `worker`: if found already.

        `caller`: the run that makes the `call` with this key, and hands over the `attached` files. Without a caller,
        the user names the attachments in the request.
        """
        run = new_id(RUN)  # first, because what the run remembers is on record under its name
        assembled = await self.assembler.assemble(
            request,
            frame,
            given,
            run=run,
            worker=worker,
            caller=caller.assembled if caller else None,
            attached=attached,
            seat=seat,
        )
        async with ended_if_not_used(assembled.servers):
            prepared = await self._put_on_record(run, request, assembled, frame, caller, call, seat)
        return replace(prepared, given=tuple(given))

    async def _put_on_record(
        self,
        run: str,
        request: RunRequest,
        assembled: Assembled,
        frame: Frame,
        caller: Prepared | None,
        call: str | None,
        seat: Seat | None,
    ) -> Prepared:
        """A run that is assembled, with its model and its first entry."""
        root = caller.root if caller else run
        source = self._source(assembled, frame, request)
        check_media_types(assembled.attachments, source)
        limited = request.budget is not None or (caller is not None and caller.limited)
        assembled = priced(assembled, source, limited=limited)
        if assembled.model == AUTO:  # what it stood for is frozen: keys may come and go
            assembled = replace(assembled, model=source.name)
        _make_folders(assembled)
        now = stamp(self.clock.now())
        first = Entry(run=run, seq=0, key=None, data=assembled.as_recorded(), at=now)

        row = {
            "id": run,
            "root": root,
            "parent": caller.run if caller else None,
            "parent_call": call,
            "worker": assembled.worker.name,
            "model": source.name,
            "status": "running",
            "kind": request.purpose.kind,
            "request": {**asdict(request), "frame": frame.recorded().as_dict()},
            "owner": self.boot,
            "created_at": now,
            "cost_usd": 0.0 if has_price(source) else None,
        }

        def write(connection: Connection) -> int:
            ordinal = records.runs_of_worker(connection, root, assembled.worker.name)
            records.add_run(connection, **row, ordinal=ordinal)
            records.add_entry(connection, first)
            if seat is not None:
                seat.began(connection, run)
            return ordinal

        return Prepared(
            run=run,
            root=root,
            assembled=assembled,
            source=source,
            frame=frame,
            ordinal=await self.store.write(write),
            journal=Journal(run, self.store, self.clock, [first]),
            override_model=request.override_model,
            purpose=request.purpose,
            limited=limited or assembled.bounds.max_budget_usd is not None,
            seat=seat,
        )

    async def prepare_again(
        self,
        run_id: str,
        frame: Frame,
        given: Sequence[Toolbox] = (),
        grant: Grant | None = None,
        *,
        caller: Prepared | None = None,
        seat: Seat | None = None,
    ) -> Prepared:
        """A run that stopped, ready to go on where its record ends, with more to use up if more is granted."""
        run = self.history.get(run_id)
        self._refuse_resuming(run, caller)
        journal = self.history.journal(run_id)
        if seat is None or seat.hear is None:
            journal.check_no_conversation("goes on where it is held", hint=f"guild show {run_id}")
        frame = frame_then(run.frame, frame)
        assembled = await self.assembler.assemble_resumed(journal.assembly, frame, given, run=run_id, seat=seat)
        async with ended_if_not_used(assembled.servers):
            check_restart(assembled.worker, assembled.tools, journal)
            prepared = await self._take_up(run, journal, assembled, frame, grant, caller)
        return replace(prepared, given=tuple(given), seat=seat)

    async def _take_up(
        self,
        run: Run,
        journal: Journal,
        assembled: Assembled,
        frame: Frame,
        grant: Grant | None,
        caller: Prepared | None,
    ) -> Prepared:
        """A run that is assembled again, with its model and what it may use up now."""
        source = self._source(assembled, frame, run.request)
        check_media_types(assembled.attachments, source)
        before = self._seconds_before(run, journal)

        def also(connection: Connection) -> None:
            columns = {"status": "running", "pause": None, "reason": None, "error": None, "running_seconds": before}
            records.change_run(connection, run.id, **columns, owner=self.boot, ended_at=None)

        below = tuple(self.history.journal(one.id) for one in self.history.below(run.id))
        granted = (grant or Grant()).bounds(journal, below, source)
        _make_folders(assembled)
        await journal.append(Resumed(was=run.status, reason=run.reason, bounds=granted), also=also)
        bounds = in_force(journal)
        explicit = run.request.budget is not None or bool(caller and caller.limited)
        return Prepared(
            run=run.id,
            root=run.root,
            assembled=replace(assembled, bounds=bounds),
            source=source,
            frame=frame,
            journal=journal,
            ordinal=run.ordinal,
            override_model=run.request.override_model,
            purpose=run.purpose,
            limited=explicit or bounds.max_budget_usd is not None,
            below=below,
            seconds_before=before,
            resumed=True,
        )

    def _source(self, assembled: Assembled, frame: Frame, request: RunRequest) -> Source:
        """Who answers; nobody where no model is asked, so that no key is needed."""
        if not request.asks_model:
            return Unasked(assembled.model)
        return self.source_of(assembled.model, frame, assembled.worker.definition.runtime == WITH_LOGIN)

    def _seconds_before(self, run: Run, journal: Journal) -> float:
        """How long a run has been running so far. One whose time was over gets the same time again."""
        if run.error is not None and run.error.get("limit") == "timeout":
            return 0.0
        recorded = self.store.read(lambda connection: records.running_seconds(connection, run.id))
        cut_off = run.status == "lost" or isinstance(journal.entries[-1].data, Listening)
        return recorded + (seconds_since_start(journal) if cut_off else 0.0)

    def _refuse_resuming(self, run: Run, caller: Prepared | None) -> None:
        if run.parent is not None and caller is None:
            raise belongs(run, "resume")
        if self.alive(run.id) or (run.status == "running" and caller is None):
            raise Conflict(f"the run {run.id} is running")
        if run.status in {"completed", "cancelled"}:
            raise Conflict(f"the run {run.id} is {run.status}: there is nothing to resume", hint=f"guild show {run.id}")


def belongs(run: Run, verb: str) -> Conflict:
    message = f"the run {run.id} belongs to {run.root}, which has called it"
    return Conflict(message, hint=f"guild {verb} {run.root}")


def refuse_over(run: Run) -> None:
    """Raises where there is nothing to stop; what has failed could still be gone on with."""
    if run.status in ENDED and run.status != "failed":
        raise Conflict(f"the run {run.id} is {run.status}: there is nothing to stop", hint=f"guild show {run.id}")


def _make_folders(assembled: Assembled) -> None:
    """Makes the sandboxes that the run may write to."""
    for folder in assembled.surroundings.view.folders:
        if not folder.writable:
            continue
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ToolUnavailable(
                f"sandboxes.{folder.name}.path: {folder.path} cannot be made: {error.strerror or error}",
                where=assembled.worker.place,
            ) from None


def frame_then(recorded: RecordedFrame, now: Frame) -> Frame:
    """Return the frame that the run had, with today's values of the variables that it had then."""
    return replace(
        now,
        cwd=recorded.cwd,
        root=recorded.root,
        worktree=recorded.worktree,
        env={name: value for name, value in now.env.items() if name in recorded.env},
        model=recorded.model,
    )
