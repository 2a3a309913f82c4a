"""Owner hooks: connect a run to its owner, which adds tools to the run and judges the end of each run segment.

The owner is a job, a commission, a meeting or a workflow. The owner passes the hooks in when it starts or resumes the
run. A replay uses hooks that execute nothing. Does not implement an owner: `activities.run_owner` does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from pydantic_ai.models import ModelRequestParameters
    from sqlalchemy import Connection

    from guildhall.runs.model import SegmentEnd
    from guildhall.tools.model import Execute, Tool, ToolCall
    from guildhall.workers.model import Worker


def _nothing(*_: object) -> None: ...


@dataclass(frozen=True, kw_only=True)
class RunHooks:
    """The hooks of an owner. A child run with hooks that waits for the user does not make its parent wait."""

    tools: tuple[Tool, ...] = ()  # tools of the owner, which have `runs_in="run"`
    executor: Callable[[str], Execute]  # returns the function that executes `tools` for a run
    record_start: Callable[[Connection, str], None] = _nothing  # called in the transaction that creates the run
    record_stop: Callable[[Connection, str, SegmentEnd], None] = _nothing  # called in the transaction of a segment end
    block_reason: Callable[[ToolCall], str | None] | None = None  # why a call is not allowed at the moment
    other_capabilities: frozenset[str] = frozenset()  # capabilities of the other agents in the team
    server: str = "room"  # name of the MCP server that offers the tools
    adapt_worker: Callable[[Worker], Worker] | None = None  # returns the worker as this owner runs it
    judge: Callable[[str, SegmentEnd], Awaitable[SegmentEnd]] | None = None  # may replace the segment end
    on_stopped: Callable[[str, SegmentEnd], Awaitable[None]] | None = None  # called after the segment end is recorded
    # Only set for conversations. Waits for the user message with this number. Message 0 is the input. A conversation
    # does not end by itself: the owner ends it. The run may be paused while it waits, even in the moment in which the
    # message arrives, so `on_stopped` looks for unanswered messages and resumes the run.
    next_message: Callable[[int], Awaitable[str]] | None = None
    withheld_capabilities: frozenset[str] = frozenset()  # excluded from tools that the worker does not declare
    final_tools: frozenset[str] = frozenset()  # a successful call of one of these tools completes the run
    deferred_tools: frozenset[str] = frozenset()  # hidden from the model until it has called `tool_loader`
    tool_loader: str | None = None
    plan_line: str | None = None  # replaces the plan of the run in its start event
    can_cost: bool = True  # False if no run of the owner has a price

    def hide_deferred_tools(
        self, parameters: ModelRequestParameters, successful_tools: frozenset[str]
    ) -> ModelRequestParameters:
        """Return the parameters of a model request. Remove the deferred tools until the `tool_loader` has succeeded."""
        if not self.deferred_tools or self.tool_loader in successful_tools:
            return parameters
        visible = [tool for tool in parameters.function_tools if tool.name not in self.deferred_tools]
        return replace(parameters, function_tools=visible)

    def filter_base_tools(self, base: Sequence[Tool]) -> tuple[Tool, ...]:
        """Return the base tools that the owner neither replaces by a tool of its own nor withholds."""
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
    """Return hooks for a replay, which offer the tools and execute nothing."""

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
