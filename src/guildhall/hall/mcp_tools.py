"""Tools of `guild mcp`: let a model outside of the hall list workers, dispatch jobs and read their results.

The model acts for a user. It may deliver the user's answer to a question, and the hall marks such an answer.
Does not approve calls, raise limits or trust code: no tool exists for that (SECURITY 14).
Does not speak MCP: `rpc.mcp_messages` does.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from guildhall.core.clock import SystemClock
from guildhall.core.errors import GuildError, NotFinished, Refused, UsageError
from guildhall.jobs.assignee_tools import check_read_only
from guildhall.jobs.model import Dispatch, check_no_model
from guildhall.memory.model import COMPACTOR_WORKER
from guildhall.runs.model import RELAYED, Answer
from guildhall.tools.definition import bind_tools

if TYPE_CHECKING:
    from guildhall.core.request_frame import Frame
    from guildhall.hall.client.interface import HallClient
    from guildhall.tools.model import Tool
    from guildhall.workers.model import WorkerListing

    Connect = Callable[[], Awaitable[tuple[HallClient, Frame]]]

NAMES = ("roster", "dispatch", "jobs", "status", "wait", "result", "answer", "cancel")
TOOLS = {name: {"worker.call"} for name in NAMES}
_READ_ONLY = ("roster", "jobs", "status", "wait", "result")
TOOL_FIELDS: dict[str, dict[str, Any]] = {
    name: {
        "annotations": {"readOnlyHint": name in _READ_ONLY, "destructiveHint": name == "cancel"},
        "outputSchema": {"type": "object"},
    }
    for name in NAMES
}
INSTRUCTIONS = """\
Guildhall runs workers in the background. List them with `roster`, start a job with `dispatch`, call `wait` until it has
ended, then `result`. Show open questions of a job to the user, and pass the user's answer on with `answer`. Only the
user can approve calls, raise limits, choose models and trust code."""
_MAX_WAIT_S = 300.0
_POLL_INTERVAL_S = 0.3
_MAX_LABEL_CHARS = 80


def mcp_tools(connect: Connect) -> tuple[Tool, ...]:
    """Return the tools. `connect` returns a client of the current hall, because an idle hall may have exited."""
    return bind_tools(McpTools(connect), TOOLS, repeatable=False, runs_in="host")


class McpTools:
    """The tools of one client of `guild mcp`. The model reads the docstrings."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._last_job: str | None = None  # id

    async def roster(self) -> str:
        """List the workers and guild members that accept jobs, with their descriptions."""
        client, frame = await self._connect()
        workers = [
            {"name": worker.name, "description": worker.description}
            for worker in await client.workers.list(frame)
            if await _accepts_jobs(worker, client, frame)
        ]
        members = [
            {"name": details.member.name, "description": details.member.description, "trusted": details.trusted}
            for details in await client.members.list(frame)
            if details.member.accepts_jobs
        ]
        return _as_json({"workers": workers, "members": members})

    async def dispatch(
        self, worker: str, task: str, description: str | None = None, config: dict[str, Any] | None = None
    ) -> str:
        """Start a job of a worker or a guild member in the background. Returns the id of the job immediately.

        Args:
            worker: A name from the roster.
            task: The complete task. The worker does not see this conversation.
            description: A short label for the user. The default is the beginning of the task.
            config: Limits such as {"maxTurns": 20, "maxBudgetUsd": 0.5}, and other values for the worker.
        """
        check_no_model(config)
        label = " ".join((description or task).split())[:_MAX_LABEL_CHARS]
        client, frame = await self._connect()
        job = await client.jobs.dispatch(worker, Dispatch(description=label, task=task, config=config or {}), frame)
        self._last_job = job.id
        return _as_json({"jobId": job.id})

    async def jobs(self, filter: str | None = None, member: str | None = None, limit: int = 20) -> str:
        """List jobs, newest first.

        Args:
            filter: A glob pattern for the whole description, such as *report*.
            member: The guild member whose jobs to list. The default is the jobs of workers.
            limit: The maximum number of jobs.
        """
        client, frame = await self._connect()
        page = await client.jobs.list(filter=filter, limit=limit, member=member, frame=frame)
        return _as_json({"jobs": [job.row("detailed") for job in page.jobs]})

    async def status(self, job: str | None = None) -> str:
        """Get the status of a job: summary, open questions, decisions. Show open questions to the user.

        Args:
            job: The id of the job. The default is the job that was dispatched last.
        """
        return _as_json(await self._status(self._job_id(job)))

    async def wait(self, job: str | None = None, seconds: float = 60.0) -> str:
        """Wait until a job has ended or has an open question, and return its status.

        Args:
            job: The id of the job. The default is the job that was dispatched last.
            seconds: The maximum time to wait, at most 300.
        """
        job = self._job_id(job)
        clock = SystemClock()
        deadline = clock.monotonic() + min(seconds, _MAX_WAIT_S)
        status = await self._status(job)
        while status["status"] == "running" and not status["questions"] and clock.monotonic() < deadline:
            await clock.sleep(_POLL_INTERVAL_S)
            status = await self._status(job)
        return _as_json(status)

    async def result(self, job: str | None = None) -> str:
        """Get the result of a completed job: its text, and its files below `directory`.

        Args:
            job: The id of the job. The default is the job that was dispatched last.
        """
        job = self._job_id(job)
        client, frame = await self._connect()
        try:
            result = await client.jobs.result(job, frame)
        except NotFinished as error:
            hint = "Use `wait` until it has ended." if error.status == "running" else "See `status`."
            raise NotFinished(error.message, job=error.job, status=error.status, hint=hint) from None
        directory = (await client.jobs.get(job, frame)).directory
        return _as_json({**result.as_wire(), **({"directory": directory} if directory else {})})

    async def answer(self, ask: str, text: str) -> str:
        """Deliver the user's answer to a question of a job. Use the user's own words; never invent an answer.

        Args:
            ask: The id of the ask from `status`, or the id of a job of a guild member.
            text: The answer of the user.
        """
        client, frame = await self._connect()
        if "/" in ask:
            await client.jobs.answer(ask, f"{text}\n(passed on by another model)", frame)
            return _as_json({"ask": ask, "delivered": True})
        if (await client.asks.get(ask)).kind != "question":
            message = f"cannot answer {ask}: it is not a question, and only the user can decide it"
            raise Refused(message, hint=f"Tell the user that {ask} waits for a decision.")
        await client.asks.answer(ask, Answer(choice=text, by=RELAYED))
        return _as_json({"ask": ask, "delivered": True})

    async def cancel(self, job: str) -> str:
        """Cancel a job. A job that has ended is not changed.

        Args:
            job: The id of the job.
        """
        client, frame = await self._connect()
        return _as_json({"jobId": job, "status": (await client.jobs.cancel(job, frame)).status})

    def _job_id(self, job: str | None) -> str:
        job = self._last_job if job is None else job
        if job is None:
            raise UsageError("job: required, because no job was dispatched yet", hint="Get the id with `jobs`.")
        return job

    async def _status(self, job: str) -> dict[str, Any]:
        client, frame = await self._connect()
        details = await client.jobs.get(job, frame)
        status = details.as_wire()
        if details.job.run is None:  # a job of a member, whose asks are not in this hall
            return status
        asks = [ask for ask in await client.asks.list() if ask.root == details.job.run]
        texts = {ask.id: ask.question.body if ask.kind == "question" else ask.question.text for ask in asks}
        return {**status, "asks": [{"ask": ask.id, "kind": ask.kind, "question": texts[ask.id]} for ask in asks]}


async def _accepts_jobs(worker: WorkerListing, client: HallClient, frame: Frame) -> bool:
    """Return True if the worker accepts jobs. Only the hall itself starts the memory compactor."""
    is_compactor = (worker.scope, worker.name) == ("shipped", COMPACTOR_WORKER)
    if worker.error is not None or worker.status != "active" or is_compactor:
        return False
    try:
        check_read_only(await client.workers.get(worker.name, frame))
    except GuildError:
        return False
    return True


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1)
