"""Callees: find the workers that a worker can reach by calls, and hold the tools that it has from members.

Each reachable worker is listed once, nearest first, even if workers call each other in a cycle. The capabilities of a
callee are derived from its file alone.

Does not make calls (`runs.execution.delegation`) and does not start members (`members`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from guildhall.core.errors import GuildError, ToolUnavailable
from guildhall.runs.assembly.tool_set import OF_MEMBERS, server_capabilities
from guildhall.tools.executor import BUILT_IN
from guildhall.tools.model import Tool
from guildhall.workers.definition import EVERY_WORKER
from guildhall.workers.lifecycle import usable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from guildhall.runs.record.entries import Assembly
    from guildhall.workers.code import Code
    from guildhall.workers.model import Worker


@dataclass(frozen=True, kw_only=True)
class Reached:
    """A worker that may be called."""

    name: str
    through: str  # the name of the worker that calls it
    worker: Worker | None = None  # None: there is none that can be used
    problem: str | None = None  # why it cannot be called


def reached(
    worker: Worker, find: Callable[[str], Worker], active: Callable[[], Sequence[Worker]]
) -> tuple[Reached, ...]:
    """All that a run of the worker can come to, the nearest first; the worker itself is not among them.

    `active` are the workers that `*` stands for.
    """
    known = {worker.identity}
    found: list[Reached] = []
    callers = deque([worker])
    while callers:
        caller = callers.popleft()
        for one in _of(caller, find, active):
            if one.worker is None:
                found.append(one)
            elif one.worker.identity not in known:
                known.add(one.worker.identity)
                found.append(one)
                callers.append(one.worker)
    return tuple(found)


def declared(worker: Worker) -> frozenset[str]:
    """What a worker can do to the world, by its file alone. A toolbox is taken for one that reads files."""
    definition = worker.definition
    forbidden = {rule.name for rule in worker.rules if not rule.allowed}
    tools = [BUILT_IN[name] for name in definition.tools if name not in forbidden]
    if definition.sandboxes or definition.toolboxes:
        tools.append(frozenset({"fs.read"}))
    writes = any(sandbox.mode == "rw" for sandbox in definition.sandboxes.values())
    tools += [server_capabilities(server, forbidden, writes=writes) for server in definition.mcp_servers.values()]
    tools += [OF_MEMBERS] if definition.members else []
    return frozenset[str]().union(*(capabilities for capabilities in tools if capabilities.isdisjoint(forbidden)))


def _of(caller: Worker, find: Callable[[str], Worker], active: Callable[[], Sequence[Worker]]) -> Iterator[Reached]:
    for name in dict.fromkeys(caller.definition.allow_workers):
        if name == EVERY_WORKER:
            yield from (Reached(name=one.name, through=caller.name, worker=one) for one in active())
            continue
        problem = None
        try:
            worker = find(name)
        except GuildError as error:
            yield Reached(name=name, through=caller.name, problem=error.message)
            continue
        try:
            usable(worker, "name")
        except GuildError as error:
            problem = error.message
        yield Reached(name=name, through=caller.name, worker=worker, problem=problem)


@dataclass(frozen=True, kw_only=True)
class Outsiders:
    """What a worker has of members: tools of theirs as toolboxes, and those that it may dispatch to."""

    toolboxes: tuple[str, ...] = ()  # of those that it declares, the ones that are the tools of members
    dispatch: Mapping[str, tuple[Tool, ...]] = field(default_factory=dict[str, tuple[Tool, ...]])  # by server
    prompt: str = ""  # how to dispatch; empty: to nobody
    lines: tuple[str, ...] = ()  # what would be started, as a plan says it
    code: tuple[Code, ...] = ()  # what would be executed
    problems: tuple[GuildError, ...] = ()  # what it names and cannot have

    @property
    def tools(self) -> tuple[Tool, ...]:
        return tuple(tool for tools in self.dispatch.values() for tool in tools)

    def as_dict(self) -> dict[str, Any]:
        """As the record keeps it: what a replay must find again."""
        dispatch = {name: [tool.as_described() for tool in tools] for name, tools in self.dispatch.items()}
        return {"toolboxes": list(self.toolboxes), "dispatch": dispatch, "prompt": self.prompt}


NOBODY = Outsiders()


def on_record(frozen: Assembly, then: Worker, today: Worker) -> Outsiders | None:
    """Those of a recorded run, for a replay, which executes nothing. None: the worker names others today."""
    told = frozen.outsiders
    if then.definition.members != today.definition.members:
        return None
    if told is None:
        return NOBODY

    def gone(**_: Any) -> None:
        raise ToolUnavailable("a replay dispatches nothing")

    return Outsiders(
        toolboxes=tuple(name for name in told["toolboxes"] if name in today.definition.toolboxes),
        dispatch={
            name: tuple(Tool.from_described(tool, gone) for tool in tools) for name, tools in told["dispatch"].items()
        },
        prompt=told["prompt"],
    )
