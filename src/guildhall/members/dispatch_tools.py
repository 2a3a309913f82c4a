"""Dispatch tools: defines the tools for the jobs of a member, and the prompt section about members.

Does not define the tools that a member offers over MCP (`members.service`). Does not send the calls (`members.jobs`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from guildhall.core.clock import SystemClock
from guildhall.core.errors import MemberTimedOut, MemberUnreachable, UsageError
from guildhall.jobs.model import Dispatch, WorkerJobs, check_no_model
from guildhall.runs.assembly.tools_and_folders import MEMBER_CAPABILITIES
from guildhall.runs.execution.tokens import DISPATCH
from guildhall.tools.definition import bind_tools
from guildhall.tools.mcp.model import tool_name
from guildhall.tools.model import Tool, ToolResult

if TYPE_CHECKING:
    from guildhall.members.model import Member

TOOLS = {
    "dispatch": MEMBER_CAPABILITIES | {"worker.call"},  # it starts another worker, and can send data to the network
    **dict.fromkeys(("wait", "list", "status", "result", "cancel", "delete"), frozenset[str]()),
}
_MAX_DESCRIPTION_CHARS = 300  # in the prompt
_MAX_WAIT_S = 3600.0
_MAX_WAITED_JOBS = 20
_POLL_INTERVAL_S = 1.0


def dispatch_server(member: Member) -> str:
    """Return the name of the server with the dispatch tools of a member."""
    return f"{member.name}{DISPATCH}"


def dispatch_tools(member: Member, jobs: Callable[[], WorkerJobs]) -> tuple[Tool, ...]:
    """Return the tools for the jobs of a member."""
    server = dispatch_server(member)
    return tuple(
        replace(
            tool,
            name=tool_name(server, tool.name),
            description=f"Member {member.name}: {tool.description}",
            repeatable=tool.name not in ("dispatch", "delete"),
        )
        for tool in bind_tools(DispatchTools(jobs), TOOLS, runs_in="hall")
    )


class DispatchTools:
    """Tools for the jobs of a member. The model reads the docstrings."""

    def __init__(self, jobs: Callable[[], WorkerJobs]) -> None:
        self._jobs = jobs

    async def dispatch(self, description: str, task: str, config: dict[str, Any] | None = None) -> Any:
        """Start a job. Returns its id immediately; the job runs in the background.

        Args:
            description: A short label for the list of jobs.
            task: The complete task. The member does not see this conversation.
            config: Options of this member, such as {"maxTurns": 40}. Omit it if you do not know them.
        """
        check_no_model(config)
        try:
            job = await self._jobs().dispatch(Dispatch(description=description, task=task, config=config or {}))
        except (MemberTimedOut, MemberUnreachable) as error:
            if isinstance(error, MemberUnreachable) and not error.sent:
                raise
            return ToolResult.error(
                f"{error.message}. The job may have started: check the list of jobs before you dispatch it again."
            )
        return {"jobId": job.id}

    async def wait(self, jobIds: list[str], seconds: float = 600.0) -> Any:  # noqa: N803 - as the protocol writes it
        """Wait until one of the jobs has ended or has an open question. Returns the status of each job.

        Args:
            jobIds: The ids that dispatch returned, at most 20.
            seconds: The maximum time to wait, at most 3600. The jobs continue after it.
        """
        if not 0 < len(jobIds) <= _MAX_WAITED_JOBS:
            raise UsageError(f"invalid jobIds: expected 1 to {_MAX_WAITED_JOBS} ids")
        clock, jobs = SystemClock(), self._jobs()
        deadline = clock.monotonic() + min(seconds, _MAX_WAIT_S)
        while True:
            every = [await jobs.status(id) for id in jobIds]
            has_news = any(details.job.status != "running" or details.questions for details in every)
            if has_news or clock.monotonic() >= deadline:
                return {"jobs": [details.as_wire() for details in every]}
            await clock.sleep(_POLL_INTERVAL_S)

    async def list(
        self,
        detail: Literal["simple", "detailed"] = "simple",
        filter: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Any:
        """List the jobs of the member with their ids and states.

        Args:
            detail: simple: id and status; detailed: also description and summary.
            filter: A pattern for the whole description, such as *prices*.
            limit: Maximum number of jobs.
            cursor: The nextCursor of the previous page.
        """
        page = await self._jobs().page(detail=detail, filter=filter, limit=limit, cursor=cursor)
        return page.as_wire(detail)

    async def status(self, jobId: str) -> Any:  # noqa: N803 - as the protocol writes it
        """Get the status of a job (running, completed, failed or cancelled), its summary, questions and decisions.

        Args:
            jobId: The id that dispatch returned.
        """
        return (await self._jobs().status(jobId)).as_wire()

    async def result(self, jobId: str) -> Any:  # noqa: N803 - as the protocol writes it
        """Get the result of a completed job.

        Args:
            jobId: The id that dispatch returned.
        """
        return (await self._jobs().result(jobId)).as_wire()

    async def cancel(self, jobId: str) -> Any:  # noqa: N803 - as the protocol writes it
        """Cancel a running job. Has no effect on a job that has ended.

        Args:
            jobId: The id that dispatch returned.
        """
        return (await self._jobs().cancel(jobId)).row()

    async def delete(self, jobId: str) -> Any:  # noqa: N803 - as the protocol writes it
        """Delete a completed or cancelled job with its result and its files. This cannot be undone.

        Args:
            jobId: The id that dispatch returned.
        """
        await self._jobs().delete(jobId)
        return {"jobId": jobId, "deleted": True}


_GUIDE = """\
How to work with members:

- `dispatch` starts a job: pass a short description and a task that is complete on its own. It returns the id of the job
  immediately, and the job runs while you continue.
- `wait` returns when one of several jobs has ended or has a question. Use it instead of repeated calls of `status`.
- `status` shows one job, `list` all jobs. A job is running, completed, failed or cancelled; `summary` is its progress.
- `questions` are for the user. Show them to the user literally, with the id of the job. Do not answer them yourself.
- When a job is completed, call `result` and present the findings with their sources, the decisions of the job and the
  open points. `artifacts` are paths in the directory of the job.
- Report the `error` of a failed job to the user. Use `cancel` for jobs that are no longer needed, and `delete` only for
  jobs that the user will not need again."""


def dispatch_guide(members: Sequence[Member]) -> str:
    """Return the prompt section about the members to which a worker can dispatch jobs, or "" without members."""
    if not members:
        return ""
    lines = [
        f"- {member.name}{_describe(member)} Its tools start with `{tool_name(dispatch_server(member), '')}`."
        for member in members
    ]
    introduction = "# Members\n\nYou can dispatch jobs to these members, which work independently:"
    return f"{introduction}\n\n" + "\n".join(lines) + f"\n\n{_GUIDE}"


def _describe(member: Member) -> str:
    name = "" if member.display_name == member.name else f" ({_short_line(member.display_name)})"
    description = _short_line(member.description or "")
    return f"{name}: {description.rstrip('.')}." if description else f"{name}."


def _short_line(text: str) -> str:
    line = "".join(char if char.isprintable() else " " for char in text).strip()
    return line if len(line) <= _MAX_DESCRIPTION_CHARS else f"{line[:_MAX_DESCRIPTION_CHARS]}..."
