"""Preparation: creates a run with its row and journal entry 0, or reopens a stopped run.

A prepared run has its assembly, model and limits, and has not started. A reopened run continues at the end of its
journal, with higher limits if the caller grants them. A run with a budget starts only if the budget can be enforced.

Does not resolve the parts of a run (`runs.assembly.assembler`) and does not launch it (`runs.execution.runs`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from guildhall.core.clock import Clock, stamp
from guildhall.core.errors import Conflict, ToolUnavailable, UsageError
from guildhall.core.ids import RUN, new_id
from guildhall.models.catalog import AUTO
from guildhall.models.credentials import LOGIN_RUNTIME
from guildhall.runs.assembly.attachments import check_media_types
from guildhall.runs.assembly.callees import can_cost
from guildhall.runs.assembly.preflight import check_restart, check_settings, has_price, no_price_error
from guildhall.runs.execution.delegation import NoModel
from guildhall.runs.limits import LimitName, Spent, current_bounds, format_limit, last_segment_seconds, raised_bounds
from guildhall.runs.model import ENDED, Run, RunRequest, check_limits
from guildhall.runs.record import records
from guildhall.runs.record.entries import Entry, Listening, Resumed
from guildhall.runs.record.journal import Journal
from guildhall.tools.mcp.client import close_on_error

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from guildhall.core.request_frame import Frame, RecordedFrame
    from guildhall.models.model import Source
    from guildhall.runs.assembly.assembled import Assembled
    from guildhall.runs.assembly.assembler import Assembler
    from guildhall.runs.model import Bounds
    from guildhall.runs.owner_hooks import RunHooks
    from guildhall.runs.purpose import Purpose
    from guildhall.runs.record.queries import History
    from guildhall.runtimes.model import Attachment
    from guildhall.store.engine import Store
    from guildhall.tools.model import Toolbox
    from guildhall.workers.model import Worker


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A run that can be launched."""

    run_id: str
    root: str
    assembled: Assembled
    source: Source
    frame: Frame
    journal: Journal
    ordinal: int
    given: tuple[Toolbox, ...] = ()  # toolboxes of the caller's process, also for child runs
    override_model: str | None
    purpose: Purpose
    has_required_budget: bool  # a budget from the user or a worker file, of this run or of its parent
    child_journals: tuple[Journal, ...] = ()
    seconds_before: float = 0.0
    is_resumed: bool = False
    printed_bounds: Bounds | None = None  # bounds of the start line, if answers that are not applied yet raise them
    hooks: RunHooks | None = None


@dataclass(frozen=True)
class Preparation:
    """Prepares the runs of one hall."""

    store: Store
    clock: Clock
    boot: str
    history: History
    assembler: Assembler
    is_alive: Callable[[str], bool]

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
        hooks: RunHooks | None = None,
    ) -> Prepared:
        """Create a run that can be launched. `given`: toolboxes of the caller's process. `worker`: if known already.

        `caller`: the run that makes the `call` with this key and passes the `attached` files on. Without a caller, the
        user names the attachments in the request.
        """
        run_id = new_id(RUN)  # first, because the memory tools record changes under this id
        is_required = request.budget is not None or (caller is not None and caller.has_required_budget)
        assembled, source = await self.assembler.assemble(
            request,
            frame,
            given,
            run_id=run_id,
            worker=worker,
            caller=caller.assembled if caller else None,
            attached=attached,
            hooks=hooks,
            needs_price=is_required,
        )
        async with close_on_error(assembled.servers):
            root = caller.root if caller else run_id
            source = source or NoModel(assembled.model)
            check_media_types(assembled.attachments, source)
            assembled = with_enforceable_budget(assembled, source, is_required=is_required)
            if assembled.model == AUTO:  # recorded, because the available keys may change
                assembled = replace(assembled, model=source.name)
            _make_folders(assembled)
            now, name = stamp(self.clock.now()), assembled.worker.name
            first = Entry(run=run_id, seq=0, key=None, data=assembled.as_recorded(), at=now)
            row = {
                "id": run_id,
                "root": root,
                "parent": caller.run_id if caller else None,
                "parent_call": call,
                "worker": name,
                "model": source.name,
                "status": "running",
                "kind": request.purpose.kind,
                "request": {**asdict(request), "frame": frame.to_record().as_dict()},
                "owner": self.boot,
                "created_at": now,
                "cost_usd": 0.0 if has_price(source) and (hooks is None or hooks.can_cost) else None,
            }

            def write(connection: Connection) -> int:
                ordinal = records.count_worker_runs(connection, root, name)
                records.add_run(connection, **row, ordinal=ordinal)
                records.add_entry(connection, first)
                if hooks is not None:
                    hooks.record_start(connection, run_id)
                return ordinal

            return Prepared(
                run_id=run_id,
                root=root,
                assembled=assembled,
                source=source,
                frame=frame,
                ordinal=await self.store.write(write),
                journal=Journal(run_id, self.store, self.clock, [first]),
                given=tuple(given),
                override_model=request.override_model,
                purpose=request.purpose,
                has_required_budget=is_required or assembled.bounds.max_budget_usd is not None,
                hooks=hooks,
            )

    async def prepare_resume(
        self,
        run_id: str,
        frame: Frame,
        given: Sequence[Toolbox] = (),
        grant: Grant | None = None,
        *,
        caller: Prepared | None = None,
        hooks: RunHooks | None = None,
    ) -> Prepared:
        """Reopen a stopped run, with raised limits if there is a grant. The run continues at the end of its journal."""
        run = self.history.get(run_id)
        self._check_resumable(run, caller)
        journal = self.history.journal(run_id)
        if hooks is None or hooks.next_message is None:
            journal.check_no_conversation("resume", hint=f"Show the conversation: guild show {run_id}")
        frame = recorded_frame(run.frame, frame)
        assembled = await self.assembler.assemble_resumed(journal.assembly, frame, given, run_id=run_id, hooks=hooks)
        async with close_on_error(assembled.servers):
            check_restart(assembled.worker, assembled.tools, journal)
            source = await self._source(assembled, frame, run.request)
            check_media_types(assembled.attachments, source)
            before = self._seconds_before(run, journal)

            def also(connection: Connection) -> None:
                columns = {"status": "running", "pause": None, "reason": None, "error": None, "running_seconds": before}
                records.change_run(connection, run.id, **columns, owner=self.boot, ended_at=None)
                if granted:
                    records.withdraw_limit_asks(connection, run.id, stamp(self.clock.now()))

            children = tuple(self.history.journal(child.id) for child in self.history.descendants(run.id))
            granted = (grant or Grant()).bounds(journal, children, source)
            _make_folders(assembled)
            await journal.append(Resumed(was=run.status, reason=run.reason, bounds=granted), also=also)
            bounds = current_bounds(journal)
            is_required = run.request.budget is not None or bool(caller and caller.has_required_budget)
            return Prepared(
                run_id=run.id,
                root=run.root,
                assembled=replace(assembled, bounds=bounds),
                source=source,
                frame=frame,
                journal=journal,
                ordinal=run.ordinal,
                override_model=run.request.override_model,
                purpose=run.purpose,
                has_required_budget=is_required or bounds.max_budget_usd is not None,
                child_journals=children,
                seconds_before=before,
                is_resumed=True,
                printed_bounds=self._printed_bounds(run.id, bounds),
                given=tuple(given),
                hooks=hooks,
            )

    async def _source(self, assembled: Assembled, frame: Frame, request: RunRequest) -> Source:
        """Return the model of a resumed run. A run that calls no model needs no key."""
        if not request.calls_model:
            return NoModel(assembled.model)
        worker = assembled.worker
        source = self.assembler.preflight.source_of(assembled.model, frame, worker.definition.runtime == LOGIN_RUNTIME)
        await check_settings(worker, source)
        return source

    def _printed_bounds(self, run_id: str, bounds: Bounds) -> Bounds:
        """Return the bounds with the raises of answered asks, which the run applies when it reaches the limit again."""
        answered = self.store.read(lambda connection: records.list_asks(connection, run_id=run_id, status="answered"))
        for ask in answered:
            if ask.run == run_id and ask.kind == "limit":
                bounds = replace(bounds, **raised_bounds(bounds, ask))
        return bounds

    def _seconds_before(self, run: Run, journal: Journal) -> float:
        """Return the running time of the earlier segments, or 0 after a timeout, because the time starts again."""
        if run.error is not None and run.error.get("limit") == "timeout":
            return 0.0
        recorded = self.store.read(lambda connection: records.running_seconds(connection, run.id))
        was_cut_off = run.status == "interrupted" or isinstance(journal.entries[-1].data, Listening)
        return recorded + (last_segment_seconds(journal) if was_cut_off else 0.0)

    def _check_resumable(self, run: Run, caller: Prepared | None) -> None:
        if run.parent is not None and caller is None:
            raise child_run_error(run, "resume")
        if self.is_alive(run.id) or (run.status == "running" and caller is None):
            raise Conflict(f"cannot resume {run.id}: it is already running", hint=f"Follow it: guild log {run.id} -f")
        if run.status in {"completed", "cancelled"}:
            raise Conflict(f"cannot resume {run.id}: it is {run.status}", hint=f"Show the run: guild show {run.id}")


def child_run_error(run: Run, verb: str) -> Conflict:
    hint = f"{verb.capitalize()} the root run: guild {verb} {run.root}"
    return Conflict(f"cannot {verb} {run.id}: it is a child run of {run.root}", hint=hint)


def check_stoppable(run: Run) -> None:
    """Raise Conflict if the run is completed or cancelled. A failed run can be stopped, because it could be resumed."""
    if run.status in ENDED and run.status != "failed":
        raise Conflict(f"cannot stop {run.id}: it is {run.status}", hint=f"Show the run: guild show {run.id}")


def _make_folders(assembled: Assembled) -> None:
    """Create the writable sandboxes of the run."""
    for folder in assembled.environment.view.folders:
        if not folder.is_writable:
            continue
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ToolUnavailable(
                f"sandboxes.{folder.name}.path: cannot create {folder.path}: {error.strerror or error}",
                where=assembled.worker.place,
                hint="Check the permissions of the parent folder, or change the path in the worker file.",
            ) from None


def recorded_frame(recorded: RecordedFrame, now: Frame) -> Frame:
    """Return the recorded frame of a run, with the current values of its environment variables."""
    return replace(
        now,
        cwd=recorded.cwd,
        root=recorded.root,
        worktree=recorded.worktree,
        env={name: value for name, value in now.env.items() if name in recorded.env},
        model=recorded.model,
    )


@dataclass(frozen=True, kw_only=True)
class Grant:
    """Raised limits of a resumed run. They count from the start of the run."""

    max_turns: int | None = None
    max_tokens: int | None = None
    budget: float | None = None  # also replaces `max_budget_usd` if the run has that limit

    def __post_init__(self) -> None:
        check_limits(self.max_turns, self.max_tokens, budget=self.budget)

    def bounds(self, journal: Journal, children: Iterable[Journal], source: Source) -> dict[str, Any]:
        """Return the granted bounds. Raise UsageError if the usage has reached a granted limit."""
        self.check_above_usage(journal, children)
        granted = {"max_turns": self.max_turns, "max_tokens": self.max_tokens, "budget": self.budget}
        if self.budget is not None:
            check_price(source)
            if current_bounds(journal).max_budget_usd is not None:
                granted["max_budget_usd"] = self.budget
        return {name: value for name, value in granted.items() if value is not None}

    def check_above_usage(self, journal: Journal, children: Iterable[Journal]) -> None:
        """Raise UsageError if the usage has reached a granted limit. Only turns exclude child runs."""
        spent = Spent.in_journals([journal, *children])
        amounts: tuple[tuple[LimitName, float | None, float, str], ...] = (
            ("max_turns", self.max_turns, journal.turns(), "the run has"),
            ("max_tokens", self.max_tokens, spent.tokens, "the run and its child runs have"),
            ("budget", self.budget, spent.dollars, "the run and its child runs have"),
        )
        for name, limit, used, owner in amounts:
            if limit is not None and limit <= used:
                reason = f"{owner} already used {format_limit(name, used)}"
                message = f"cannot set {name} to {format_limit(name, limit)}: {reason}"
                raise UsageError(message, hint="Limits count from the start of the run. Set a higher limit.")


def check_price(source: Source) -> None:
    if not has_price(source):
        raise no_price_error(source.name)


def with_enforceable_budget(assembled: Assembled, source: Source, *, is_required: bool) -> Assembled:
    """Return the run without the budget of the settings if neither the run nor a worker that it calls has a price.

    Raise ModelUnusable if the model has no price and a budget `is_required` or in the worker file.
    """
    if is_required or assembled.bounds.max_budget_usd is not None:
        check_price(source)
    if can_cost(assembled.worker, priced=has_price(source)):
        return assembled
    return replace(assembled, bounds=replace(assembled.bounds, budget=None))
