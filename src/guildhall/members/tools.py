"""Dispatch tools: give a worker six tools for the jobs of a member, and a prompt section about members.

The tools are dispatch, list, status, result, cancel and delete.
Does not present a member's own tools: these come over MCP (`service.py`, `spec`). Does not send the calls (`jobs.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from guildhall.core.errors import MemberTimedOut, MemberUnreachable
from guildhall.jobs.model import Dispatch, WorkerJobs, refuse_choice_of_model
from guildhall.runs.assembly.tool_set import OF_MEMBERS
from guildhall.runs.execution.tokens import DISPATCH
from guildhall.tools.definition import tool
from guildhall.tools.mcp.model import tool_name
from guildhall.tools.model import Tool, ToolResult

if TYPE_CHECKING:
    from guildhall.members.model import Member

Reach = Callable[[], Awaitable[WorkerJobs]]

# To hand over a task is to run another worker, and what is handed over may leave the machine.
_DISPATCHES = OF_MEMBERS | {"worker.call"}
_LONGEST = 300  # characters of a description in the prompt


def server_of(member: Member) -> str:
    """The name of the server that shows the tools."""
    return f"{member.name}{DISPATCH}"


def bridge(member: Member, reach: Reach) -> tuple[Tool, ...]:
    """The six tools of a member that takes work."""
    made = (_dispatch(reach), _list(reach), _status(reach), _result(reach), _cancel(reach), _delete(reach))
    server, told = server_of(member), f"Of the member {member.name}."
    return tuple(
        replace(one, name=tool_name(server, one.name), description=f"{told} {one.description}") for one in made
    )


def _dispatch(reach: Reach) -> Tool:
    @tool(capabilities=_DISPATCHES, runs_in="hall")
    async def dispatch(description: str, task: str, config: dict[str, Any] | None = None) -> Any:
        """Hand over a task. Answers at once with the id of the job; the work goes on by itself.

        Args:
            description: A short label, for the list of jobs.
            task: All that the member has to know. It sees nothing of this conversation.
            config: What this member takes, such as {"maxTurns": 40}; leave it out if you do not know.
        """
        refuse_choice_of_model(config)
        try:
            job = await (await reach()).dispatch(Dispatch(description=description, task=task, config=config or {}))
            return {"jobId": job.id}
        except MemberTimedOut as error:
            return _unknown(error.message)
        except MemberUnreachable as error:
            if not error.sent:
                raise
            return _unknown(error.message)

    return dispatch


def _unknown(why: str) -> ToolResult:
    return ToolResult.error(f"{why}. Whether the job was dispatched is not known: look at the list of jobs first.")


def _list(reach: Reach) -> Tool:
    @tool(name="list", repeatable=True, runs_in="hall")
    async def listed(
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
        page = await (await reach()).page(detail=detail, filter=filter, limit=limit, cursor=cursor)
        return page.as_wire(detail)

    return listed


def _status(reach: Reach) -> Tool:
    @tool(repeatable=True, runs_in="hall")
    async def status(jobId: str) -> Any:  # noqa: N803 - as the protocol writes it
        """How a job stands: running, completed, failed or cancelled; its summary, its questions, its decisions.

        Args:
            jobId: The id that dispatch gave.
        """
        return (await (await reach()).status(jobId)).as_wire()

    return status


def _result(reach: Reach) -> Tool:
    @tool(repeatable=True, runs_in="hall")
    async def result(jobId: str) -> Any:  # noqa: N803 - as the protocol writes it
        """What came of a job that is completed.

        Args:
            jobId: The id that dispatch gave.
        """
        return (await (await reach()).result(jobId)).as_wire()

    return result


def _cancel(reach: Reach) -> Tool:
    @tool(repeatable=True, runs_in="hall")
    async def cancel(jobId: str) -> Any:  # noqa: N803 - as the protocol writes it
        """End a job that is running. One that has ended stays as it is.

        Args:
            jobId: The id that dispatch gave.
        """
        return (await (await reach()).cancel(jobId)).row()

    return cancel


def _delete(reach: Reach) -> Tool:
    @tool(runs_in="hall")
    async def delete(jobId: str) -> Any:  # noqa: N803 - as the protocol writes it
        """Remove a job that is completed or cancelled, with all that it made. This cannot be undone.

        Args:
            jobId: The id that dispatch gave.
        """
        await (await reach()).delete(jobId)
        return {"jobId": jobId, "deleted": True}

    return delete


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


def guidance(members: Sequence[Member]) -> str:
    """What a worker is told about the members that it may dispatch to; nothing, where there are none."""
    if not members:
        return ""
    lines = [f"- {member.name}{_about(member)} Its tools begin with `{_prefix(member)}`." for member in members]
    head = "# Members that take work\n\nYou can hand tasks to these guild members, each of which works on its own:"
    return f"{head}\n\n" + "\n".join(lines) + f"\n\n{_GUIDE}"


def _prefix(member: Member) -> str:
    return tool_name(server_of(member), "")


def _about(member: Member) -> str:
    name = "" if member.display_name == member.name else f" ({_line(member.display_name)})"
    said = _line(member.description or "")
    return f"{name}: {said.rstrip('.')}." if said else f"{name}."


def _line(text: str) -> str:
    """A manifest's words on one line, and not too many of them."""
    shown = "".join(char if char.isprintable() else " " for char in text).strip()
    return shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}..."
