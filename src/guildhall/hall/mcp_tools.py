"""Tools of `guild mcp`: let a model outside of the hall list workers, dispatch jobs and read their results.

The model acts for a user. It may pass on the user's answer to a question, and the hall marks that answer as passed on.
Does not approve calls, raise limits or trust code: no tool exists for that (SECURITY 14).
Does not speak MCP: `rpc.mcp_messages` does.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from guildhall.core.clock import SystemClock
from guildhall.core.errors import GuildError, NotFinished, Refused, UsageError
from guildhall.jobs.model import Dispatch, check_no_model
from guildhall.jobs.tools import check_read_only
from guildhall.memory.model import COMPACTOR_WORKER
from guildhall.runs.model import RELAYED, Answer
from guildhall.tools.definition import bind_tools

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from guildhall.core.frame import Frame
    from guildhall.hall.client.interface import HallClient
    from guildhall.tools.model import Tool
    from guildhall.workers.model import WorkerListing

    Reach = Callable[[], Awaitable[tuple[HallClient, Frame]]]

NAMES = ("roster", "dispatch", "jobs", "status", "wait", "result", "answer", "cancel")
TOOLS = {name: {"worker.call"} for name in NAMES}
_MOST_SECONDS = 300.0
_EVERY = 0.3  # seconds between two looks
_LABEL = 80  # characters of a description that was not given


def outside_tools(reach: Reach) -> tuple[Tool, ...]:
    """Return the tools. `reach` connects to the current hall, because an idle hall may have exited."""
    return bind_tools(OutsideTools(reach), TOOLS, repeatable=False, runs_in="host")


class OutsideTools:
    """The tools of one client of `guild mcp`. The model reads the docstrings."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self._last: str | None = None  # the job that was dispatched here last

    async def roster(self) -> str:
        """List the workers and guild members that take work, with what each of them is for."""
        client, frame = await self._reach()
        workers = [
            {"name": one.name, "description": one.description}
            for one in await client.workers.list(frame)
            if await _takes_work(one, client, frame)
        ]
        members = [
            {"name": shown.member.name, "description": shown.member.description, "trusted": shown.trusted}
            for shown in await client.members.list(frame)
            if shown.member.accepts_jobs
        ]
        return _told({"workers": workers, "members": members})

    async def dispatch(
        self, worker: str, task: str, description: str | None = None, config: dict[str, Any] | None = None
    ) -> str:
        """Hand a task over to a worker or a guild member. Returns at once with the id of the job; the work goes on.

        Args:
            worker: A name out of the roster.
            task: All that it is told: it sees nothing of this conversation.
            description: A short label for people; without it the beginning of the task.
            config: Such as {"maxTurns": 20, "maxBudgetUsd": 0.5}, and whatever the worker is to read.
        """
        check_no_model(config)
        label = " ".join((description or task).split())[:_LABEL]
        client, frame = await self._reach()
        job = await client.jobs.dispatch(worker, Dispatch(description=label, task=task, config=config or {}), frame)
        self._last = job.id
        return _told({"jobId": job.id})

    async def jobs(self, filter: str | None = None, member: str | None = None, limit: int = 20) -> str:
        """List jobs, the newest first.

        Args:
            filter: A pattern such as *report* that the whole description must fit.
            member: The jobs of this guild member; without it those of the workers.
            limit: At most so many.
        """
        client, frame = await self._reach()
        page = await client.jobs.list(filter=filter, limit=limit, member=member, frame=frame)
        before = "" if member is None else f"{member}/"
        return _told({"jobs": [{**job.row("detailed"), "jobId": f"{before}{job.id}"} for job in page.jobs]})

    async def status(self, job: str | None = None) -> str:
        """How a job stands: its summary, its open questions, the decisions it made. Show open questions to the person.

        Args:
            job: Its id; without it the job that was dispatched last.
        """
        return _told(await self._standing(self._named(job)))

    async def wait(self, job: str | None = None, seconds: float = 60.0) -> str:
        """Wait until a job has ended or asks something, and say how it stands then.

        Args:
            job: Its id; without it the job that was dispatched last.
            seconds: No longer than this.
        """
        job = self._named(job)
        clock = SystemClock()
        until = clock.monotonic() + min(seconds, _MOST_SECONDS)
        standing = await self._standing(job)
        while standing["status"] == "running" and not standing["questions"] and clock.monotonic() < until:
            await clock.sleep(_EVERY)
            standing = await self._standing(job)
        return _told(standing)

    async def result(self, job: str | None = None) -> str:
        """What came out of a job that is completed: its text, and the files that it made, below its directory.

        Args:
            job: Its id; without it the job that was dispatched last.
        """
        job = self._named(job)
        client, frame = await self._reach()
        try:
            result = await client.jobs.result(job, frame)
        except NotFinished as error:
            more = "`wait` waits until it has ended." if error.status == "running" else "`status` says more."
            raise NotFinished(error.message, job=error.job, status=error.status, hint=more) from None
        directory = (await client.jobs.get(job, frame)).directory
        return _told({**result.as_wire(), "jobId": job, **({"directory": directory} if directory else {})})

    async def answer(self, ask: str, text: str) -> str:
        """Pass on what the person has said to a question of a job. Only the person's own words: do not make them up.

        Args:
            ask: The id of the ask, as `status` shows it.
            text: What the person said.
        """
        client, _ = await self._reach()
        asked = await client.asks.get(ask)
        if asked.kind != "question":
            raise Refused(
                f"{ask} is no question: only the person decides it",
                hint=f"Tell the person to look at it and answer it: guild answer {ask}",
            )
        await client.asks.answer(ask, Answer(choice=text, by=RELAYED))
        return "Passed on."

    async def cancel(self, job: str) -> str:
        """End a job for good. One that has ended stays as it is.

        Args:
            job: Its id.
        """
        client, frame = await self._reach()
        return _told({"jobId": job, "status": (await client.jobs.cancel(job, frame)).status})

    def _named(self, job: str | None) -> str:
        if job is not None:
            return job
        if self._last is None:
            raise UsageError("job: which one is meant? Nothing was dispatched here so far", hint="`jobs` lists them.")
        return self._last

    async def _standing(self, job: str) -> dict[str, Any]:
        client, frame = await self._reach()
        shown = await client.jobs.get(job, frame)
        standing = {**shown.as_wire(), "jobId": job}
        if shown.job.run is None:  # a member's: its asks are not in the inbox
            return standing
        asks = [one for one in await client.asks.list() if one.root == shown.job.run]
        return {**standing, "asks": [{"ask": one.id, "kind": one.kind, "question": one.question.body} for one in asks]}


async def _takes_work(one: WorkerListing, client: HallClient, frame: Frame) -> bool:
    """Return True if the worker accepts a dispatch. Only the hall itself starts the memory compactor."""
    if one.error is not None or one.status != "active" or (one.scope, one.name) == ("shipped", COMPACTOR_WORKER):
        return False
    try:
        check_read_only(await client.workers.get(one.name, frame))
    except GuildError:
        return False
    return True


def _told(what: Any) -> str:
    return json.dumps(what, ensure_ascii=False, indent=1)
