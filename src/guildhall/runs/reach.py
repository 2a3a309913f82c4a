"""The workers that a worker may call, and those that they may call: each once, however they call each other."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from guildhall.core.errors import GuildError
from guildhall.runs.arrange import OF_MEMBERS, server_capabilities
from guildhall.tools.builtin import BUILT_IN
from guildhall.workers.definition import EVERY_WORKER
from guildhall.workers.lifecycle import usable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

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
