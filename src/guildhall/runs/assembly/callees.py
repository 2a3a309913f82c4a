"""Callees: find the workers that a worker can reach by calls, and supply the tools to call workers and members.

Each reachable worker is listed once, nearest first, even if workers call each other in a cycle. The capabilities of a
callee are derived from its file alone.

Does not make calls (`runs.execution.delegation`) and does not start members (`members`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from guildhall.core.errors import GuildError, ToolUnavailable
from guildhall.runs.assembly.tool_set import MEMBER_CAPABILITIES, server_capabilities
from guildhall.tools.definition import tool
from guildhall.tools.executor import BUILT_IN
from guildhall.tools.model import Tool
from guildhall.workers.definition import EVERY_WORKER
from guildhall.workers.lifecycle import check_usable
from guildhall.workers.model import GENERATED, Worker, WorkerListing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from guildhall.runs.record.entries import Assembly
    from guildhall.workers.code import Code


CALL = "worker_call"
CREATE = "worker_create"
CREATE_RULES = frozenset({CREATE, "worker.create"})


@dataclass(frozen=True, kw_only=True)
class Callee:
    """A worker that may be called."""

    name: str
    through: str  # the name of the worker that calls it
    worker: Worker | None = None  # None: there is none that can be used
    problem: str | None = None  # why it cannot be called


def find_callees(
    worker: Worker, find: Callable[[str], Worker], active: Callable[[], Sequence[Worker]]
) -> tuple[Callee, ...]:
    """Return all other workers that a run of the worker can reach, nearest first. `active`: what `*` stands for."""
    known = {worker.identity}
    found: list[Callee] = []
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


def declared_capabilities(worker: Worker) -> frozenset[str]:
    """What a worker can do to the world, by its file alone. A toolbox is taken for one that reads files."""
    definition = worker.definition
    forbidden = {rule.name for rule in worker.rules if not rule.allowed}
    tools = [BUILT_IN[name] for name in definition.tools if name not in forbidden]
    if definition.sandboxes or definition.toolboxes:
        tools.append(frozenset({"fs.read"}))
    writes = any(sandbox.mode == "rw" for sandbox in definition.sandboxes.values())
    tools += [server_capabilities(server, forbidden, writes=writes) for server in definition.mcp_servers.values()]
    tools += [MEMBER_CAPABILITIES] if definition.members else []
    return frozenset[str]().union(*(capabilities for capabilities in tools if capabilities.isdisjoint(forbidden)))


def _of(caller: Worker, find: Callable[[str], Worker], active: Callable[[], Sequence[Worker]]) -> Iterator[Callee]:
    for name in dict.fromkeys(caller.definition.allow_workers):
        if name == EVERY_WORKER:
            yield from (Callee(name=one.name, through=caller.name, worker=one) for one in active())
            continue
        worker = problem = None
        try:
            worker = find(name)
            check_usable(worker, "name")
        except GuildError as error:
            problem = error.message
        yield Callee(name=name, through=caller.name, worker=worker, problem=problem)


@dataclass(frozen=True, kw_only=True)
class MemberTools:
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


NO_MEMBERS = MemberTools()


def recorded_members(frozen: Assembly, then: Worker, today: Worker) -> MemberTools | None:
    """Those of a recorded run, for a replay, which executes nothing. None: the worker names others today."""
    told = frozen.member_tools
    if then.definition.members != today.definition.members:
        return None
    if told is None:
        return NO_MEMBERS

    def gone(**_: Any) -> None:
        raise ToolUnavailable("a replay dispatches nothing")

    return MemberTools(
        toolboxes=tuple(name for name in told["toolboxes"] if name in today.definition.toolboxes),
        dispatch={
            name: tuple(Tool.from_described(tool, gone) for tool in tools) for name, tools in told["dispatch"].items()
        },
        prompt=told["prompt"],
    )


@tool(name=CREATE, capabilities={"worker.create"}, repeatable=True, runs_in="run")
def create_tool(
    name: str,
    instructions: str,
    description: str | None = None,
    model: str | None = None,
    output_schema: dict[str, Any] | None = None,
) -> str:
    """Write a new worker. A person reads it first; once approved it is a draft that you can call with worker_call.

    Args:
        name: Its name; no other worker has it.
        instructions: How it is to work, what to care about, what a good answer looks like.
        description: What it is for, in a line.
        model: The model it runs on, as provider:model; leave it out to use yours.
        output_schema: A JSON Schema (type object) that its result must fit; leave it out for plain text.
    """
    raise AssertionError


def can_create_workers(worker: Worker) -> bool:
    """Whether its file says that it may write workers: by a rule that allows it."""
    return any(rule.name in CREATE_RULES and rule.allowed for rule in worker.rules)


@tool(name=CALL, capabilities={"worker.call"}, repeatable=True, runs_in="run")
def _worker_call(worker_name: str, input_data: str | dict[str, Any], attachments: list[str] | None = None) -> str:
    """Give another worker a task, and get its result.

    Args:
        worker_name: The worker's name.
        input_data: All that it needs to know and is to do, as text or as a JSON object.
        attachments: Files to hand over: sandbox/path in one of your own sandboxes, or one that you were given.
    """
    raise AssertionError


def make_call_tool(callable_workers: Iterable[tuple[str, str | None]], *, creates: bool) -> Tool:
    """`worker_call`, as a worker is shown it that may call these (names, and what each is for) and maybe make more."""
    lines = [f"- {name}: {about}" if about else f"- {name}" for name, about in callable_workers]
    if creates:
        lines.append("- those that you make with worker_create")
    told = (
        "Give another worker a task, and get its result. It has its own instructions and tools and knows nothing of "
        "this conversation. Several calls in one answer are carried out side by side. The workers are:"
    )
    reads = {"attachments": frozenset({"fs.read"})}  # what is handed over is read by the one that hands it over
    return replace(_worker_call, description="\n".join([told, *lines]), also=reads)


def calling_tools(
    worker: Worker, find: Callable[[str], Worker], everyone: Callable[[], Iterable[WorkerListing]]
) -> tuple[Tool, ...]:
    """The tools with which a worker calls others and writes them, as far as its file says that it may."""
    allowed, creates = worker.definition.allow_workers, can_create_workers(worker)
    if not allowed and not creates:
        return ()
    call = make_call_tool(callable_workers(allowed, find, everyone), creates=creates)
    return (call, create_tool) if creates else (call,)


def callable_workers(
    allowed: Sequence[str], find: Callable[[str], Worker], everyone: Callable[[], Iterable[WorkerListing]]
) -> list[tuple[str, str | None]]:
    """The workers that an allow-list names, with what they are for. A draft that a worker wrote has only its name."""
    if EVERY_WORKER in allowed:
        return [(one.name, one.description) for one in everyone() if one.status == "active"]
    found: list[tuple[str, str | None]] = []
    for name in allowed:
        try:
            worker = find(name)
        except GuildError:  # it may be written later; a call of one that is not there is told so
            found.append((name, None))
            continue
        generated = worker.path is not None and worker.path.parent.name == GENERATED
        found.append((name, None if generated and worker.status == "draft" else worker.description))
    return found


def has_budget(worker: Worker, *, priced: bool) -> bool:
    """Whether the settings' budget applies: without a price it could not be kept, except for those that it calls."""
    return priced or bool(worker.definition.allow_workers) or can_create_workers(worker)
