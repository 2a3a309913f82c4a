"""The commission service: the operations on commissions, the owner of their runs, and the recovery when a hall starts.

A recovery derives the remaining step of each commission from its row and its run.
Does not implement the operations (`drafts.py`, `attempts.py`, `completion.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from guildhall.activities.questions import QuestionChannel, ResumeTimers, answer_text, call_with_answers
from guildhall.core.errors import Conflict, GuildError, RuntimeFailed
from guildhall.projects.activity_records import list_known_ids
from guildhall.projects.commissions import artifact, attempts, completion, contract, dependencies, drafts, records
from guildhall.projects.commissions.assignee_tools import SERVER, CommissionTools, commission_profile, commission_tools
from guildhall.projects.commissions.contract import REVIEW_SERVER, REVIEW_TOOLS, WITHHELD, review_profile
from guildhall.projects.commissions.dependencies import find_missing, missing_link_warnings, update_blocked
from guildhall.projects.commissions.model import By, Commission, CommissionDetails, Draft, parse_checkout_name
from guildhall.projects.commissions.states import ACTIVE, ENDED, Event, Status, next_step
from guildhall.runs.model import ENDED as RUN_ENDED
from guildhall.runs.model import Answer, Ask, Run, SegmentEnd
from guildhall.runs.owner_hooks import RunHooks, replay_hooks
from guildhall.runs.purpose import CommissionPurpose, Contract
from guildhall.runs.record.records import change_ask, list_asks

if TYPE_CHECKING:
    from guildhall.activities.contract import AskedQuestion
    from guildhall.core.request_frame import Frame
    from guildhall.projects.commissions.context import CommissionContext
    from guildhall.projects.model import Project
    from guildhall.runs.execution.preparation import Grant, Prepared
    from guildhall.tools.model import Tool, ToolCall, ToolResult

_DEBOUNCE_S = 0.02  # between a commit and the next query, because commits come in groups
_POLL_INTERVAL_S = 0.1  # between two queries of a database that another process writes
_log = logging.getLogger("guildhall.commissions")


class Commissions:
    """The operations on commissions, and the owner of their runs."""

    def __init__(self, context: CommissionContext) -> None:
        self.context = context
        self._queue = attempts.Queue(context, partial(attempts.start, context, hooks=self._hooks))
        self._watcher = dependencies.BranchWatcher(context)
        self._timers: ResumeTimers | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._tool_locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # by commission

    # queries

    def get(self, id: str) -> Commission:
        return self.context.get(id)

    async def list_commissions(self, project: str | None = None, status: Status | None = None) -> list[Commission]:
        """Return commissions in the order of their creation."""
        if not self.context.readonly:
            await update_blocked(self.context, project)
        statuses = (status,) if status is not None else None
        return self.context.store.read(
            lambda connection: records.list_commissions(connection, project=project, statuses=statuses)
        )

    async def details(self, id: str) -> CommissionDetails:
        if not self.context.readonly:
            await update_blocked(self.context, self.get(id).project)
        return await asyncio.to_thread(self._details, id)

    def _details(self, id: str) -> CommissionDetails:
        context, commission = self.context, self.get(id)
        timeline = context.timeline(id)
        missing: Sequence[str] = ()
        worktree = None
        try:
            path = context.workspace(commission).path
            if path.is_dir() and commission.status != "completed":  # else the checkout is about to be removed
                worktree = str(path)
            missing = find_missing(context, commission)
            warnings = self._warnings(commission)
        except GuildError as error:  # the project is not registered, or its folder is missing
            warnings = [error.message]
        asks = context.asks.list_of_run(commission.run) if commission.run is not None else ()
        return CommissionDetails(
            commission=commission,
            timeline=timeline,
            asked=artifact.list_questions(context, timeline),
            decisions=artifact.list_decisions(context, timeline),
            waiting=[ask.id for ask in asks if ask.status == "open"],
            neighbours=dependencies.neighbours(commission, context.list_commissions(commission.project), missing),
            cost_usd=attempts.total_cost(context, timeline),
            worktree=worktree,
            warnings=warnings,
        )

    def _warnings(self, commission: Commission) -> list[str]:
        if commission.status == "dispatched":
            reason = self._queue.waiting_reason(commission)
            return [reason] if reason is not None else []
        if commission.status == "in_progress":
            return []
        warnings = self.context.artifact_warnings(commission)
        is_waiting = commission.status in ("pending", "blocked")
        return warnings + missing_link_warnings(self.context, commission) if is_waiting else warnings

    def needs_user(self, id: str) -> bool:
        """Return True if the commission has ended or cannot make progress without user action."""
        commission = self.get(id)
        if commission.status == "dispatched":
            return self._queue.needs_user(commission)
        if commission.status == "in_progress":
            run_id = commission.run
            return run_id is not None and (commission.hold is not None or self._run_needs_user(run_id))
        if commission.status != "blocked":
            return True
        graph = dependencies.dependency_graph(self.context.list_commissions(commission.project))
        statuses = [self.get(producer).status for _, producer in graph.get(id, ())]
        return not any(status in (*ACTIVE, "blocked") for status in statuses)

    def _run_needs_user(self, run_id: str) -> bool:
        """Return True if a run waits for the user. A question alone does not stop the run."""
        open_asks = (ask for ask in self.context.asks.list_of_run(run_id) if ask.status == "open")
        return self.context.history.get(run_id).needs_user or any(ask.kind != "question" for ask in open_asks)

    async def wait_idle(self, ids: Sequence[str], timeout_s: float) -> bool:
        """Wait until each commission has ended or needs the user. Return False after the timeout."""
        context = self.context

        def is_idle() -> bool:
            return all(map(self.needs_user, ids))

        with suppress(TimeoutError), context.store.watch_commits() as changed:
            async with asyncio.timeout(timeout_s):
                while not is_idle():
                    if not context.readonly:
                        await changed.wait()
                    await context.clock.sleep(_POLL_INTERVAL_S if context.readonly else _DEBOUNCE_S)
                    changed.clear()
        return is_idle()

    # Operations are shielded, because a client that disconnects must not interrupt them.

    async def create(
        self, project: Project, draft: Draft, frame: Frame, *, by: By = "person", made_by: str | None = None
    ) -> Commission:
        return await asyncio.shield(drafts.create(self.context, project, draft, frame, by=by, made_by=made_by))

    async def edit(self, id: str, changes: Mapping[str, Any], frame: Frame, *, by: By = "person") -> Commission:
        work = drafts.edit(self.context, id, changes, frame, by=by)
        return await asyncio.shield(self._then_run_queue(work, id, frame))

    async def delete(self, id: str) -> None:
        await asyncio.shield(drafts.delete(self.context, id))

    async def dispatch(self, id: str, frame: Frame) -> Commission:
        async def work() -> Commission:
            async with self.context.locks[id]:
                return await attempts.dispatch(self.context, id, frame)

        return await asyncio.shield(self._then_run_queue(work(), id, frame))

    async def redispatch(self, id: str, frame: Frame) -> Commission:
        work = attempts.redispatch(self.context, id, frame)
        return await asyncio.shield(self._then_run_queue(work, id, frame))

    async def cancel(self, id: str, reason: str = "by the user") -> Commission:
        cancelled = await asyncio.shield(attempts.cancel(self.context, id, reason))
        await self._after_change()
        return cancelled

    async def abandon(self, id: str, reason: str = "by the user") -> Commission:
        return await asyncio.shield(attempts.abandon(self.context, id, reason))

    async def _then_run_queue(self, work: Coroutine[Any, Any, Commission], id: str, frame: Frame) -> Commission:
        """Await an operation that may dispatch a commission, then run the queue."""
        self._queue.add(id, frame)
        try:
            await work
            await self._queue.run()
        finally:
            if self.get(id).status != "dispatched":
                self._queue.discard(id)
        return self.get(id)

    async def _after_change(self) -> None:
        """Update blocked commissions, then start a task that runs the queue."""
        try:
            await _log_errors(partial(update_blocked, self.context))
        finally:
            self._start(self._queue.run)

    def _start(self, work: Callable[[], Awaitable[None]]) -> None:
        if not self._closed:
            task = asyncio.create_task(_log_errors(work))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    # the hooks of a commission's run

    def _hooks(self, purpose: CommissionPurpose) -> RunHooks:
        context, id, contract = self.context, purpose.id, purpose.contract
        assert contract is not None
        return RunHooks(
            tools=commission_tools(contract.schema),
            executor=lambda run: partial(self._call_tool, id, contract, run),
            record_start=partial(attempts.record_start, context, id),
            record_stop=partial(completion.record_end, context, id),
            server=SERVER,
            adapt_worker=commission_profile,
            judge=partial(completion.judge, context, id),
            on_stopped=partial(self._on_run_stopped, id),
        )

    async def _call_tool(self, id: str, contract: Contract, run: str, tool: Tool, call: ToolCall) -> ToolResult:
        context, commission = self.context, self.get(id)

        async def keep(asked: AskedQuestion) -> None:
            context.redact(asked.question)  # stores the redacted text, so that every hall writes the same artifact

        questions = QuestionChannel(
            title=f"Question from {commission.worker} in commission {commission.id} ({commission.title})",
            lock=self._tool_locks[commission.id],
            store=context.store,
            ledger=lambda: context.runs().ledger(run),
            keep=keep,
        )
        tools = CommissionTools(context, commission.id, contract, questions, call.key)
        return await call_with_answers(tools, tool, call, questions)

    async def _on_run_stopped(self, id: str, run_id: str, ending: SegmentEnd) -> None:
        """Clean up after a recorded end, or free the slot of a paused commission."""
        await asyncio.to_thread(artifact.current_artifact, self.context, self.get(id))  # stores the redacted texts
        if ending.status == "waiting" and self._timers is not None:
            self._timers.start(run_id)
        if ending.status not in RUN_ENDED:
            if ending.pause != "shutdown":  # the commission waits for the user and takes no slot
                self._start(self._queue.run)
            return
        try:
            await completion.clean_up(self.context, id)
            await completion.request_conflict_meeting(self.context, id)
        except GuildError as error:  # the end is recorded, and the next start repeats these steps
            _log.warning("%s: %s", id, error)
        await self._after_change()

    # the owner of runs (RunOwner)

    async def prepare_resume(self, run_id: str, frame: Frame, grant: Grant | None = None) -> Prepared:
        """Prepare a stopped run of a commission to resume in its checkout."""
        context, purpose = self.context, self.context.history.purpose(run_id, CommissionPurpose)
        commission = context.commission_of(run_id)
        if commission.run != run_id or commission.status != "in_progress":
            message = f"cannot resume commission {commission.id}: it is {commission.status}"
            raise Conflict(message, hint=commission.next_command)
        async with context.locks[commission.id]:
            commission = await asyncio.to_thread(context.reclaim, commission.id)
            workspace = context.workspace(commission)
            worker = context.find_worker(commission.worker, context.project_frame(workspace.project, frame))
            if not workspace.path.is_dir():
                await asyncio.to_thread(self.record_lost_checkout, commission.checkout)
            await asyncio.to_thread(workspace.check_out, worker.definition.checkout)
            hooks = self._hooks(purpose)
            prepared = await context.runs().prepare_resume(run_id, frame, grant=grant, hooks=hooks)
            await context.release(commission.id)
            return prepared

    def record_lost_checkout(self, checkout: str) -> None:
        contract.record_lost_checkout(self.context, checkout)

    async def stop(self, run_id: str) -> list[str]:
        """Cancel the commission of a run. Return the run, or an empty list if the commission was completed instead."""
        cancelled = await self.cancel(self.context.commission_of(run_id).id)
        return [run_id] if cancelled.status == "cancelled" else []

    async def record_resume_failure(self, run: Run, error: GuildError) -> None:
        """Put a commission whose run cannot be resumed on hold, or finish it if its result is submitted."""
        commission = self.context.commission_of(run.id)
        if self.context.history.get(run.id).status in RUN_ENDED or commission.run != run.id:
            return
        if commission.is_submitted:
            ending = SegmentEnd(status="failed", reason=error.code, error=error.as_dict())
            await completion.finish(self.context, commission, ending)
        else:
            await self.context.hold(commission.id, "cannot_resume", error)
        await self._after_change()

    async def apply_answer(self, ask: Ask) -> None:
        """Carry out the answer to a conflict, or write a late answer to a question into the artifact.

        An ask whose answer cannot be carried out is reopened.
        """
        context = self.context
        purpose = context.history.get(ask.run).purpose_as(CommissionPurpose)
        if purpose is None or ask.answer is None:
            return
        if ask.kind == "question":
            context.redact(answer_text(ask))
            commission = context.store.read(lambda connection: records.find(connection, purpose.id))
            if commission is not None and commission.status in ENDED:
                await artifact.write_artifact(context, commission.id)
        elif ask.kind == completion.CONFLICT:
            try:
                await self._resolve_conflict(ask, ask.answer)
            except GuildError:
                fields: dict[str, Any] = {"status": "open", "answer": None, "closed_at": None}
                await context.store.write(lambda connection: change_ask(connection, ask.id, "answered", **fields))
                raise
            await context.store.write(lambda connection: change_ask(connection, ask.id, "answered", status="applied"))

    async def _resolve_conflict(self, ask: Ask, answer: Answer) -> None:
        commission = self.context.commission_of(ask.run)
        if commission.run != ask.run or commission.status != "failed":
            return
        if answer.choice == "redispatch":
            folder = self.context.project(commission).path
            await self.redispatch(commission.id, self.context.frame_at(folder))
        elif answer.choice == "abandon":
            await self.abandon(commission.id, answer.note or "merge conflict")

    def start_resuming(self, resume: Callable[[Run], Awaitable[None]]) -> None:
        """Recover the commissions of the previous hall, and resume waiting runs from now on."""
        context = self.context
        self._timers = ResumeTimers(asks=context.asks, history=context.history, clock=context.clock, resume=resume)
        for commission in context.store.read(records.list_active):
            run = context.find_run(commission.run)
            if run is not None and run.status == "waiting":
                self._timers.start(run.id)

        async def start_up() -> None:
            await recover(context)
            for ask in context.store.read(lambda connection: list_asks(connection, status="answered")):
                if ask.kind == completion.CONFLICT:  # a killed hall has not carried out the answer
                    try:
                        await self.apply_answer(ask)
                    except GuildError as error:
                        _log.warning("%s is open again: %s", ask.id, error)
            await self._queue.run()

        self._start(start_up)
        self._watcher.start()

    @property
    def has_pending_resume(self) -> bool:
        """Return True while a background task runs or a timer waits to resume a run."""
        return bool(self._tasks) or (self._timers is not None and self._timers.is_busy)

    async def drain(self) -> None:
        """Wait until no background task runs."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    def close(self) -> None:
        self._closed = True
        self._watcher.close()
        if self._timers is not None:
            self._timers.close()
        for task in self._tasks:
            task.cancel()


async def _log_errors(work: Callable[[], Awaitable[None]]) -> None:
    try:
        await work()
    except GuildError as error:  # for example an invalid config.yaml
        _log.warning("%s", error)
    except Exception:  # noqa: BLE001 - a background task has no caller
        _log.exception("a background task of the commissions failed")


def commission_replay_hooks(run: Run) -> RunHooks | None:
    """Return the replay hooks of a run or review of a commission, or None for other runs."""
    if (purpose := run.purpose_as(CommissionPurpose)) is None:
        return None
    if purpose.contract is None:
        return replay_hooks(REVIEW_TOOLS, review_profile, server=REVIEW_SERVER, withheld_capabilities=WITHHELD)
    return replay_hooks(commission_tools(purpose.contract.schema), commission_profile, server=SERVER)


# recovery


async def recover(context: CommissionContext) -> None:
    """Do the next step of every commission. Errors are logged and do not stop the rest."""
    for project in context.list_projects():
        try:
            await asyncio.to_thread(artifact.rebuild_rows, context, project)
            await asyncio.to_thread(_remove_stale_checkouts, context, project)
        except GuildError as error:
            _log.warning("%s: %s", project.name, error)
    for commission in context.list_commissions():
        try:
            await do_next_step(context, commission)
        except GuildError as error:
            _log.warning("%s: %s", commission.id, error)
        except Exception:  # noqa: BLE001 - a broken commission must not stop the others
            _log.exception("cannot recover %s", commission.id)
    await update_blocked(context)


async def do_next_step(context: CommissionContext, commission: Commission) -> None:
    """Do the remaining step of a commission, except the start of a dispatched commission, which the queue does."""
    id, run = commission.id, context.find_run(commission.run)
    match next_step(commission, run, is_alive=run is not None and context.is_alive(run.id)):
        case "finish":
            assert run is not None
            status = "completed" if run.status == "completed" else "failed"
            ending = SegmentEnd(status=status, reason=run.reason, error=run.error)
            await completion.finish(context, commission, ending)
        case "cancel":
            await _end(context, id, "cancel", "its run was cancelled")
        case "fail":
            await _end(context, id, "fail", "its run is missing: the database of the hall was lost")
        case "hold":
            error = RuntimeFailed("unexpected error", hint="See hall.log for the details.")
            await context.hold(id, "cannot_resume", error)
        case "clean_up" if await asyncio.to_thread(_has_leftovers, context, commission):
            await completion.clean_up(context, id)
        case _:
            pass
    if commission.status not in ACTIVE and not await asyncio.to_thread(context.has_current_artifact, context.get(id)):
        await artifact.write_artifact(context, id)


async def _end(context: CommissionContext, id: str, event: Event, reason: str) -> None:
    await context.store.write(lambda connection: records.record_event(connection, id, event, reason, context.now()))
    await completion.clean_up(context, id)


def _has_leftovers(context: CommissionContext, commission: Commission) -> bool:
    """Return True if an ended commission still has a checkout, or a merged branch that is not archived."""
    if commission.branch is None:
        return False
    workspace = context.workspace(commission)
    return workspace.path.exists() or (commission.status == "completed" and workspace.tip() is not None)


def _remove_stale_checkouts(context: CommissionContext, project: Project) -> None:
    """Remove the checkouts of earlier attempts and of deleted commissions, after committing their content."""
    current = {commission.id: commission.checkout for commission in context.list_commissions(project.name)}
    deleted = context.store.read(list_known_ids) - {commission.id for commission in context.list_commissions()}
    for checkout in context.worktrees.list_activities(project.name):
        id = parse_checkout_name(checkout)
        if (id in current and checkout != current[id]) or id in deleted:
            try:
                context.worktrees.remove(project, checkout)
            except (GuildError, OSError) as error:
                _log.warning("%s: the checkout could not be removed: %s", checkout, error)
