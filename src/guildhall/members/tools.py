"""Dispatch tools: give a worker six tools for the jobs of a member, and a prompt section about members.

The tools are dispatch, list, status, result, cancel and delete.
Does not present a member's own tools: these come over MCP (`service.py`, `spec`). Does not send the calls (`jobs.py`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from guildhall.core.errors import MemberTimedOut, MemberUnreachable
from guildhall.jobs.model import Dispatch, WorkerJobs, check_no_model
from guildhall.runs.assembly.tool_set import MEMBER_CAPABILITIES
from guildhall.runs.execution.tokens import DISPATCH
from guildhall.tools.definition import bind_tools
from guildhall.tools.mcp.model import tool_name
from guildhall.tools.model import Tool, ToolResult

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from guildhall.members.model import Member

TOOLS = {
    "dispatch": MEMBER_CAPABILITIES | {"worker.call"},  # it runs another worker, and the task may leave the machine
    **dict.fromkeys(("list", "status", "result", "cancel", "delete"), frozenset[str]()),
}
_MAX_DESCRIPTION = 300  # characters in the prompt


def dispatch_server(member: Member) -> str:
    """Return the name of the server of the dispatch tools."""
    return f"{member.name}{DISPATCH}"


def dispatch_tools(member: Member, jobs: Callable[[], WorkerJobs]) -> tuple[Tool, ...]:
    """Return the six tools of a member that takes work."""
    server = dispatch_server(member)
    return tuple(
        replace(
            one,
            name=tool_name(server, one.name),
            description=f"Of the member {member.name}. {one.description}",
            repeatable=one.name not in ("dispatch", "delete"),
        )
        for one in bind_tools(DispatchTools(jobs), TOOLS, runs_in="hall")
    )


class DispatchTools:
    """The tools for the jobs of a member. The model reads the docstrings."""

    def __init__(self, jobs: Callable[[], WorkerJobs]) -> None:
        self._jobs = jobs

    async def dispatch(self, description: str, task: str, config: dict[str, Any] | None = None) -> Any:
        """Hand over a task. Answers at once with the id of the job; the work goes on by itself.

        Args:
            description: A short label, for the list of jobs.
            task: All that the member has to know. It sees nothing of this conversation.
            config: What this member takes, such as {"maxTurns": 40}; leave it out if you do not know.
        """
        check_no_model(config)
        try:
            job = await self._jobs().dispatch(Dispatch(description=description, task=task, config=config or {}))
        except (MemberTimedOut, MemberUnreachable) as error:
            if isinstance(error, MemberUnreachable) and not error.sent:
                raise
            message = f"{error.message}. Whether the job was dispatched is not known: look at the list of jobs first."
            return ToolResult.error(message)
        return {"jobId": job.id}

    async def list(
        self,
        detail: Literal["simple", "detailed"] = "simple",
        filter: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Any:
        """The jobs of the member, with their ids and how they stand.

        Args:
            detail: simple: id and status; detailed: also description and the worker's own summary.
            filter: A pattern that the whole description must match, such as *prices*.
            limit: How many at most.
            cursor: Where the page before said that the next one begins.
        """
        page = await self._jobs().page(detail=detail, filter=filter, limit=limit, cursor=cursor)
        return page.as_wire(detail)

    async def status(self, jobId: str) -> Any:  # noqa: N803 - as the protocol writes it
        """How a job stands: running, completed, failed or cancelled; its summary, its questions, its decisions.

        Args:
            jobId: The id that dispatch gave.
        """
        return (await self._jobs().status(jobId)).as_wire()

    async def result(self, jobId: str) -> Any:  # noqa: N803 - as the protocol writes it
        """What came of a job that is completed.

        Args:
            jobId: The id that dispatch gave.
        """
        return (await self._jobs().result(jobId)).as_wire()

    async def cancel(self, jobId: str) -> Any:  # noqa: N803 - as the protocol writes it
        """End a job that is running. One that has ended stays as it is.

        Args:
            jobId: The id that dispatch gave.
        """
        return (await self._jobs().cancel(jobId)).row()

    async def delete(self, jobId: str) -> Any:  # noqa: N803 - as the protocol writes it
        """Remove a job that is completed or cancelled, with all that it made. This cannot be undone.

        Args:
            jobId: The id that dispatch gave.
        """
        await self._jobs().delete(jobId)
        return {"jobId": jobId, "deleted": True}


_GUIDE = """\
How to work with them:

- Hand over with `dispatch`: a short description, and a task that stands on its own. You get the id of a job at once,
  and the work goes on while you do something else.
- Watch with `status`, or `list` for all of them. A job is running, completed, failed or cancelled; `summary` says how
  far it has come. Do something useful in between rather than asking again and again.
- `questions` are for the person. Put them to the person in the job's own words, with its id; do not answer them
  yourself.
- When a job is completed, fetch it with `result` and present what it found, with its sources, the decisions that it
  took and what is still open. `artifacts` are paths in the job's own directory.
- A failed job says why in `error`: tell the person. Use `cancel` for what is no longer needed, and `delete` only for
  what nobody will want to read again."""


def dispatch_guide(members: Sequence[Member]) -> str:
    """Return the prompt section about the members that a worker may dispatch to, or "" if there are none."""
    if not members:
        return ""
    lines = [
        f"- {member.name}{_about(member)} Its tools begin with `{tool_name(dispatch_server(member), '')}`."
        for member in members
    ]
    head = "# Members that take work\n\nYou can hand tasks to these guild members, each of which works on its own:"
    return f"{head}\n\n" + "\n".join(lines) + f"\n\n{_GUIDE}"


def _about(member: Member) -> str:
    name = "" if member.display_name == member.name else f" ({_line(member.display_name)})"
    said = _line(member.description or "")
    return f"{name}: {said.rstrip('.')}." if said else f"{name}."


def _line(text: str) -> str:
    """Return a text of a manifest as one short line."""
    shown = "".join(char if char.isprintable() else " " for char in text).strip()
    return shown if len(shown) <= _MAX_DESCRIPTION else f"{shown[:_MAX_DESCRIPTION]}..."
