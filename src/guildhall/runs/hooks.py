"""Run hooks: connect a run to its owner, which adds tools, judges the end of each run segment and is notified of it.

The owner is a job, a commission, a meeting or a workflow. It passes the hooks in when it starts or resumes the run. A
replay uses hooks that execute nothing. Does not implement an owner (`activities.run_owner`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from sqlalchemy import Connection

    from guildhall.runs.model import SegmentEnd
    from guildhall.tools.model import Execute, Tool, ToolCall
    from guildhall.workers.model import Worker


def _nothing(*_: object) -> None: ...


@dataclass(frozen=True, kw_only=True)
class RunHooks:
    """The hooks of an owner. A child run with hooks that waits for the user does not make its parent wait."""

    tools: tuple[Tool, ...] = ()  # in addition to the tools of the worker; each `runs_in` the run
    executor: Callable[[str], Execute]  # returns the function that executes these tools for a run
    record_start: Callable[[Connection, str], None] = _nothing  # in the transaction that creates the run
    record_stop: Callable[[Connection, str, SegmentEnd], None] = _nothing  # in the transaction that ends a segment
    block_reason: Callable[[ToolCall], str | None] | None = None  # why a call is not allowed at the moment
    other_capabilities: frozenset[str] = frozenset()  # of the other agents in the team
    server: str = "room"  # name of the MCP server that offers the tools
    adapt_worker: Callable[[Worker], Worker] | None = None  # returns the worker as this owner runs it
    judge: Callable[[str, SegmentEnd], Awaitable[SegmentEnd]] | None = None  # may replace the end of a segment
    on_stopped: Callable[[str, SegmentEnd], Awaitable[None]] | None = None  # after the end of a segment is recorded
    # Set for conversations only: waits for the user's message with this number, from 1. Message 0 is the input. A
    # conversation does not end by itself: the owner ends it. The run may be paused while it waits, even in the moment
    # in which the message arrives, so `on_stopped` looks for unanswered messages and resumes the run.
    next_message: Callable[[int], Awaitable[str]] | None = None
    withheld_capabilities: frozenset[str] = frozenset()  # excluded from tools that the worker does not declare
    plan_line: str | None = None  # replaces the plan of the run in its start event

    def filter_base_tools(self, base: Sequence[Tool]) -> tuple[Tool, ...]:
        """Return the undeclared tools that the run has beside the tools of the owner."""
        own = {tool.name for tool in self.tools}
        withheld = self.withheld_capabilities
        return tuple(tool for tool in base if tool.name not in own and tool.capabilities.isdisjoint(withheld))


def replay_hooks(
    tools: Sequence[Tool],
    adapt_worker: Callable[[Worker], Worker] | None = None,
    *,
    is_conversation: bool = False,
    server: str = "room",
    withheld_capabilities: frozenset[str] = frozenset(),
) -> RunHooks:
    """Return hooks for a replay: they offer the tools and execute nothing."""

    def never(*_: object) -> NoReturn:
        raise AssertionError

    return RunHooks(
        tools=tuple(tools),
        executor=never,
        adapt_worker=adapt_worker,
        next_message=never if is_conversation else None,
        server=server,
        withheld_capabilities=withheld_capabilities,
    )
