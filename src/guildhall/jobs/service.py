"""Job service: dispatches, cancels, deletes and resumes the jobs of a hall.

A job is a task with one run, which the job owns. When the run ends, the contract decides whether the job is completed
or failed. A job with an accepted result is completed, even if its run fails or is cancelled afterwards.

Does not list jobs (`jobs.queries`), define the tools of a job (`jobs.assignee_tools`), or execute the run
(`runs.execution`).

Invariant: the end of a run is written to the database before meta.json. If the process dies in between, `jobs.queries`
repairs the directory.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from guildhall.activities.contract import AskedQuestion, is_result_accepted, output_text, rejection_reason
from guildhall.activities.questions import QuestionChannel, ResumeTimers, answer_text, call_with_answers
from guildhall.core.clock import Clock, stamp
from guildhall.core.errors import Conflict, GuildError, InvalidFile, NotDeletable, NotFulfilled
from guildhall.core.ids import JOB, new_id
from guildhall.jobs.assignee_tools import (
    SERVER,
    WITHHELD,
    JobTools,
    check_read_only,
    first_message,
    job_contract,
    job_profile,
    job_tools,
)
from guildhall.jobs.directory import RESULT, JobDirectory
from guildhall.jobs.model import Dispatch, Job
from guildhall.jobs.queries import JobQueries
from guildhall.runs.model import ENDED, Ask, Run, RunRequest, SegmentEnd
from guildhall.runs.owner_hooks import RunHooks, replay_hooks
from guildhall.runs.purpose import Contract, JobPurpose
from guildhall.runs.record import records
from guildhall.tools.definition import invoke

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy import Connection

    from guildhall.core.request_frame import Frame
    from guildhall.runs.asks import Asks
    from guildhall.runs.execution.preparation import Grant, Prepared
    from guildhall.runs.execution.runs import Runs
    from guildhall.runs.record.queries import History
    from guildhall.store.engine import Store
    from guildhall.tools.model import Execute, Tool, ToolCall, ToolResult
    from guildhall.workers.model import Worker

_log = logging.getLogger("guildhall.jobs")


class Jobs(JobQueries):
    """The jobs of one folder, with the operations that start, end and resume runs."""

    def __init__(
        self,
        *,
        folder: Path,
        store: Store,
        clock: Clock,
        history: History,
        asks: Asks,
        runs: Callable[[], Runs],
        is_alive: Callable[[str], bool],
        find_worker: Callable[[str, Frame], Worker],
        load_output_schema: Callable[[Worker, Frame], Awaitable[Mapping[str, Any] | None]],
        readonly: bool = False,
    ) -> None:
        """`find_worker` returns a worker by name. `readonly`: do not repair directories."""
        super().__init__(folder=folder, store=store, clock=clock, asks=asks, is_alive=is_alive, readonly=readonly)
        self._history = history
        self._runs = runs
        self._find_worker = find_worker
        self._load_output_schema = load_output_schema
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # by job
        self._timers: ResumeTimers | None = None

    async def dispatch(self, worker_name: str, dispatch: Dispatch, frame: Frame) -> Job:
        dispatch.check()
        frame = replace(frame, interactive=False)
        worker = self._find_worker(worker_name, frame)
        check_read_only(worker)
        contract = job_contract(worker, dispatch, await self._load_output_schema(worker, frame))
        # The shield prevents an incomplete job if the caller disconnects.
        return await asyncio.shield(self._start(worker_name, worker, dispatch, contract, frame))

    async def _start(
        self, worker_name: str, worker: Worker, dispatch: Dispatch, contract: Contract, frame: Frame
    ) -> Job:
        job = Job(
            id=self._new_id(),
            worker=worker.name,
            description=dispatch.description,
            status="running",
            started_at=stamp(self._clock.now()),
        )
        directory = self._index.directory(job.id)
        purpose = JobPurpose(
            id=job.id, description=job.description, has_memory=bool(worker.definition.base), contract=contract
        )
        request = RunRequest(
            worker=worker_name,
            input=first_message(dispatch),
            override_model=dispatch.model,
            max_turns=dispatch.max_turns,
            max_budget_usd=dispatch.max_budget_usd,
            purpose=purpose,
        )
        try:
            await asyncio.to_thread(directory.create, dispatch.task, dict(dispatch.config))
            hooks = self._hooks(purpose)
            prepared = await self._runs().prepare(request, frame, worker=job_profile(worker), hooks=hooks)
            job = replace(job, run=prepared.run_id)
            await self._launch(job, prepared)
        except BaseException:
            await asyncio.to_thread(directory.remove)
            raise
        return job

    async def _launch(self, job: Job, prepared: Prepared) -> None:
        try:
            await self._save(job)
        except BaseException:
            await prepared.assembled.servers.close()
            now = stamp(self._clock.now())
            await self._store.write(lambda connection: records.cancel_with_child_runs(connection, prepared.run_id, now))
            raise
        self._runs().launch(prepared)

    def _new_id(self) -> str:
        while (id := new_id(JOB)) and self._index.directory(id).path.exists():
            continue
        return id

    def _hooks(self, purpose: JobPurpose) -> RunHooks:
        id, contract = purpose.id, purpose.contract
        return RunHooks(
            tools=job_tools(contract, has_memory=purpose.has_memory),
            executor=lambda run_id: self._create_executor(id, run_id, contract),
            server=SERVER,
            adapt_worker=job_profile,
            judge=lambda run_id, end: asyncio.to_thread(self._judge, id, contract, run_id, end),
            on_stopped=partial(self._on_segment_end, id),
            withheld_capabilities=WITHHELD,
        )

    def _create_executor(self, id: str, run_id: str, contract: Contract) -> Execute:
        """Return the function that executes the job tools of a run."""
        job, directory, lock = self.get(id), self._index.directory(id), self._write_locks[id]
        questions = QuestionChannel(
            title=f"Question from {job.worker} in the job {id} ({job.description})",
            lock=lock,
            store=self._store,
            ledger=lambda: self._runs().ledger(run_id),
            keep=partial(self._save_question, id),
        )

        async def remember(key: str, content: str) -> ToolResult:
            runs, prepared = self._runs(), self._runs().prepared_run(run_id)
            worker, model = prepared.assembled.worker, prepared.assembled.model
            base = runs.assembler.base_tools(
                worker, prepared.frame, SERVER, run_id=run_id, model=model, has_memory=True
            )
            write = next(tool for tool in base if tool.name == "memory_write")
            return await invoke(write, {"scope": "worker", "key": key, "content": content})

        async def execute(tool: Tool, call: ToolCall) -> ToolResult:
            tools = JobTools(directory, contract, lock, questions, remember, call.key)
            return await call_with_answers(tools, tool, call, questions)

        return execute

    async def _save_question(self, id: str, asked: AskedQuestion) -> None:
        try:
            async with self._write_locks[id]:
                await asyncio.to_thread(self._index.directory(id).add_question, asked)
        except (Conflict, InvalidFile) as error:  # `status` reads the question from the database
            _log.warning("%s: %s", id, error)

    async def cancel(self, id: str) -> Job:
        """Cancel a job. An ended job does not change, and a job with an accepted result is completed."""
        async with self._locks[id]:
            job = self.get(id)
            if job.status != "running":
                return job
            if job.run is not None:
                await self._runs().pause(job.run, "shutdown")  # if the hall dies now, the next hall resumes the job
            run = self._find_run(job)
            if run is not None and run.status not in ENDED:
                await self._end(run, self._index.directory(id))
                run = self._find_run(job)
            job = self.get(id)  # its run may have ended meanwhile
            if job.status == "running":
                job = await self._save(self._with_run_status(job, run, status_if_missing="cancelled"))
            return job

    async def stop(self, run_id: str) -> list[str]:
        """Cancel the job of a run. Return the ids of the cancelled runs."""
        id = self._history.purpose(run_id, JobPurpose).id
        job = self.get(id)
        if job.status != "running":
            message = f"cannot cancel the job {id}: its status is already {job.status}"
            raise Conflict(message, hint=f"Details: guild show {id}")
        job = await self.cancel(id)
        return [job.run] if job.run is not None and job.status == "cancelled" else []

    async def _end(self, run: Run, directory: JobDirectory) -> None:
        """Cancel a paused run, or complete it if its result was accepted."""
        output = None
        with suppress(InvalidFile):  # cancel the run if result.md is invalid
            output = directory.result() if is_result_accepted(self._history.entries(run.id)) else None
        if output is None:
            await self._runs().cancel(run.id)
            return
        now = stamp(self._clock.now())
        await self._store.write(lambda connection: records.complete_run(connection, run.id, output, now))

    async def delete(self, id: str, *, force: bool = False) -> None:
        """Delete a completed or cancelled job. `force`: delete a failed job too."""
        async with self._locks[id]:
            job = self.get(id)
            if job.status == "running":
                hint = f"Cancel the job first: guild stop {id}"
                raise NotDeletable(f"cannot delete the job {id}: it is running", hint=hint)
            if job.status == "failed" and not force:
                hint = f"Resume the job: guild resume {id}. Delete it with its files: guild rm {id} --force"
                raise NotDeletable(f"cannot delete the job {id}: it failed", hint=hint)
            await asyncio.to_thread(self._index.directory(id).remove)
            self._index.drop(id)
            if (run_id := job.run) is not None:
                now = stamp(self._clock.now())
                await self._store.write(lambda connection: records.withdraw_asks(connection, run_id, now))
        self._locks.pop(id, None)
        self._write_locks.pop(id, None)

    def _judge(self, id: str, contract: Contract, run_id: str, end: SegmentEnd) -> SegmentEnd:
        """Check a segment end against the contract of the job, and return the segment end to record."""
        if end.status not in ("completed", "failed"):
            return end
        directory = self._index.directory(id)
        try:
            if is_result_accepted(self._history.entries(run_id)) and (output := directory.result()) is not None:
                late_error = end.error["message"] if end.error else None
                return SegmentEnd(status="completed", reason=late_error, output=output)
            if end.status == "failed":
                return end
            text = directory.check_result(contract, end.output)
            if contract.schema is None and (reason := rejection_reason(self._history.entries(run_id))) is not None:
                raise NotFulfilled(f"the run ended without an accepted result: {reason}")
            directory.write_result(text)
            return replace(end, output=text)
        except NotFulfilled as error:
            directory.write_result(output_text(end.output))
            hint = f"The output is in {directory.path / RESULT}. Dispatch the job again with a more precise task."
            failure = NotFulfilled(error.message, hint=hint)
            return SegmentEnd(status="failed", reason=failure.code, error=failure.as_dict(), output=end.output)
        except GuildError as error:
            return SegmentEnd(status="failed", reason=error.code, error=error.as_dict())

    async def _on_segment_end(self, id: str, run_id: str, end: SegmentEnd) -> None:
        """Write the end of a run to the directory, or start the timer that resumes a waiting run."""
        if end.status == "waiting" and self._timers is not None:
            self._timers.start(run_id)
        if end.status in ENDED:
            try:
                await self._apply_end(run_id)
            except GuildError as error:  # `jobs.queries` repairs the directory
                _log.warning("%s: %s", id, error)

    async def prepare_resume(self, run_id: str, frame: Frame, grant: Grant | None = None) -> Prepared:
        """Prepare to resume the run of a job, and set the status of the job to `running`."""
        purpose = self._history.purpose(run_id, JobPurpose)
        if (job := self._index.get(purpose.id)) is None:
            message = f"cannot resume {run_id}: its job {purpose.id} was deleted"
            raise Conflict(message, hint="Dispatch the job again.")
        if (status := self._history.get(run_id).status) in ("completed", "cancelled"):
            raise Conflict(f"cannot resume the job {job.id}: it is {status}", hint=f"Details: guild show {job.id}")
        async with self._locks[job.id]:  # of two concurrent calls, the second raises an error
            prepared = await self._runs().prepare_resume(run_id, frame, grant=grant, hooks=self._hooks(purpose))
            if job.status != "running":
                await self._save(replace(job, status="running", completed_at=None, error=None))
            return prepared

    def start_resuming(self, resume: Callable[[Run], Awaitable[None]]) -> None:
        """From now on, resume waiting jobs with `resume` when no open ask blocks them."""
        self._timers = ResumeTimers(asks=self._asks, history=self._history, clock=self._clock, resume=resume)
        for job in self._index.running():
            run = self._find_run(job)
            if run is not None and run.status == "waiting":
                self._timers.start(run.id)

    @property
    def has_pending_resume(self) -> bool:
        """Return True while a timer waits to resume a run."""
        return self._timers is not None and self._timers.is_busy

    def close(self) -> None:
        if self._timers is not None:
            self._timers.close()

    async def record_resume_failure(self, run: Run, error: GuildError) -> None:
        """Record that a run cannot be resumed: fail its job, or cancel the run if the job was deleted."""
        if (status := self._history.get(run.id).status) == "running" or status in ENDED:
            return  # the run was resumed or ended meanwhile
        now = stamp(self._clock.now())
        has_job = self._index.get(self._history.purpose(run.id, JobPurpose).id) is not None

        def write(connection: Connection) -> None:
            if has_job:
                records.fail_run(connection, run.id, error.as_dict(), now)
            else:
                records.cancel_with_child_runs(connection, run.id, now)

        await self._store.write(write)
        await self._apply_end(run.id)

    async def _apply_end(self, run_id: str) -> None:
        """Write the recorded end of a run to its job."""
        run = self._history.get(run_id)
        job = self._index.get(self._history.purpose(run_id, JobPurpose).id)
        if job is not None and job.status == "running" and run.status in ENDED:
            await self._save(self._with_run_status(job, run, status_if_missing="failed"))

    async def apply_answer(self, ask: Ask) -> None:
        """Write the user's answer to a question of a job to its directory."""
        purpose = self._history.get(ask.run).purpose_as(JobPurpose)
        if ask.kind != "question" or purpose is None or self._index.get(purpose.id) is None:
            return
        directory = self._index.directory(purpose.id)
        async with self._write_locks[purpose.id]:
            await asyncio.to_thread(directory.add_answer, ask.id, answer_text(ask))


def job_replay_hooks(run: Run) -> RunHooks | None:
    """Return the hooks for a replay of the run of a job, or None for other runs."""
    if (purpose := run.purpose_as(JobPurpose)) is None:
        return None
    return replay_hooks(
        job_tools(purpose.contract, has_memory=purpose.has_memory),
        job_profile,
        server=SERVER,
        withheld_capabilities=WITHHELD,
    )
