"""Callees: find the workers that a worker can reach by calls, and supply the tools to call workers and members.

Each reachable worker is listed once, nearest first, even if workers call each other in a cycle. The capabilities of a
callee are derived from its file alone.

Does not make calls (`runs.execution.delegation`) and does not start members (`members`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from guildhall.core.errors import GuildError, ToolUnavailable
from guildhall.runs.assembly.tools_and_folders import MEMBER_CAPABILITIES, server_capabilities
from guildhall.tools.call_router import BUILT_IN
from guildhall.tools.definition import tool
from guildhall.tools.model import Tool
from guildhall.workers.definition import EVERY_WORKER
from guildhall.workers.lifecycle import check_usable
from guildhall.workers.model import GENERATED, Worker, WorkerListing

if TYPE_CHECKING:
    from guildhall.runs.record.entries import Assembly
    from guildhall.workers.code_trust import Code


CALL = "worker_call"
CREATE = "worker_create"
CREATE_RULES = frozenset({CREATE, "worker.create"})


@dataclass(frozen=True, kw_only=True)
class Callee:
    """A worker that another worker may call."""

    name: str
    through: str  # the name of the caller
    worker: Worker | None = None  # None if it cannot be loaded
    problem: str | None = None  # why it cannot be called


def find_callees(
    worker: Worker, find: Callable[[str], Worker], active: Callable[[], Sequence[Worker]]
) -> tuple[Callee, ...]:
    """Return all other workers that a run of the worker can reach, nearest first. `active`: the meaning of `*`."""
    known = {worker.identity}
    callees: list[Callee] = []
    callers = deque([worker])
    while callers:
        caller = callers.popleft()
        for callee in _direct_callees(caller, find, active):
            if callee.worker is None:
                callees.append(callee)
            elif callee.worker.identity not in known:
                known.add(callee.worker.identity)
                callees.append(callee)
                callers.append(callee.worker)
    return tuple(callees)


def declared_capabilities(worker: Worker) -> frozenset[str]:
    """Return the capabilities of a worker by its file alone. A toolbox counts as a tool that reads files."""
    definition = worker.definition
    forbidden = {rule.name for rule in worker.rules if not rule.allowed}
    tools = [BUILT_IN[name] for name in definition.tools if name not in forbidden]
    if definition.sandboxes or definition.toolboxes or definition.project_instructions:
        tools.append(frozenset({"fs.read"}))
    writes = any(sandbox.mode == "rw" for sandbox in definition.sandboxes.values())
    tools += [server_capabilities(server, forbidden, writes=writes) for server in definition.mcp_servers.values()]
    tools += [MEMBER_CAPABILITIES] if definition.members else []
    return frozenset[str]().union(*(capabilities for capabilities in tools if capabilities.isdisjoint(forbidden)))


def _direct_callees(
    caller: Worker, find: Callable[[str], Worker], active: Callable[[], Sequence[Worker]]
) -> Iterator[Callee]:
    for name in dict.fromkeys(caller.definition.allow_workers):
        if name == EVERY_WORKER:
            yield from (Callee(name=worker.name, through=caller.name, worker=worker) for worker in active())
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
    """The members of a worker, which it uses as toolboxes or to which it may dispatch jobs."""

    toolboxes: tuple[str, ...] = ()  # the declared toolboxes that are members
    dispatch: Mapping[str, tuple[Tool, ...]] = field(default_factory=dict[str, tuple[Tool, ...]])  # by server
    prompt: str = ""  # instructions for dispatching, or an empty string
    lines: tuple[str, ...] = ()  # descriptions for a plan
    code: tuple[Code, ...] = ()  # the code that would be executed
    problems: tuple[GuildError, ...] = ()

    @property
    def tools(self) -> tuple[Tool, ...]:
        return tuple(tool for tools in self.dispatch.values() for tool in tools)

    def as_dict(self) -> dict[str, Any]:
        """Return the recorded form, which a replay uses."""
        dispatch = {name: [tool.as_described() for tool in tools] for name, tools in self.dispatch.items()}
        return {"toolboxes": list(self.toolboxes), "dispatch": dispatch, "prompt": self.prompt}


NO_MEMBERS = MemberTools()


def recorded_members(frozen: Assembly, then: Worker, today: Worker) -> MemberTools | None:
    """Return the members of a recorded run for a replay, or None if the worker names other members today."""
    if then.definition.members != today.definition.members:
        return None
    if (recorded := frozen.member_tools) is None:
        return NO_MEMBERS

    def unavailable(**_: Any) -> None:
        raise ToolUnavailable("cannot dispatch a job in a replay")

    dispatch: Mapping[str, Sequence[Mapping[str, Any]]] = recorded["dispatch"]
    return MemberTools(
        toolboxes=tuple(name for name in recorded["toolboxes"] if name in today.definition.toolboxes),
        dispatch={
            name: tuple(Tool.from_described(tool, unavailable) for tool in tools) for name, tools in dispatch.items()
        },
        prompt=recorded["prompt"],
    )


@tool(name=CREATE, capabilities={"worker.create"}, repeatable=True, runs_in="run")
def create_tool(
    name: str,
    instructions: str,
    description: str | None = None,
    model: str | None = None,
    output_schema: dict[str, Any] | None = None,
    output_schema_ref: str | None = None,
    force: bool = False,
) -> str:
    """Create a worker. The user must approve it. Then it is a draft that you can call with worker_call.

    Args:
        name: A name that no other worker has.
        instructions: Its system prompt: how to work, what matters, what a good result looks like.
        description: Its purpose, in one line.
        model: Its model, as provider:model. Omit it to use your model.
        output_schema: A JSON Schema (type object) for its result. Omit it for plain text.
        output_schema_ref: An existing schema file, such as schemas/report.json, instead of output_schema.
        force: Replace a draft of this name that a worker created. Other workers are never replaced.
    """
    raise AssertionError


def can_create_workers(worker: Worker) -> bool:
    """Return True if a rule of the worker allows it to create workers."""
    return any(rule.name in CREATE_RULES and rule.allowed for rule in worker.rules)


@tool(name=CALL, capabilities={"worker.call"}, repeatable=True, runs_in="run")
def _worker_call(
    worker: str, input_data: str | dict[str, Any] | None = None, attachments: list[str] | None = None
) -> str:
    """Run another worker and return its result.

    Args:
        worker: The name of the worker.
        input_data: Its task with all the context that it needs, as text or as a JSON object. Omit it if the
            instructions of the worker and the attachments describe the task.
        attachments: Files for the worker: sandbox/path in one of your sandboxes, or an attachment of yours.
    """
    raise AssertionError


def make_call_tool(workers: Sequence[tuple[str, str | None]], *, creates: bool, is_complete: bool) -> Tool:
    """Return `worker_call` with a description that lists the workers (name and purpose) that may be called.

    `is_complete`: no other worker can be called, so the schema lists the names.
    """
    lines = [f"- {name}: {about}" if about else f"- {name}" for name, about in workers]
    if creates:
        lines.append("- workers that you create with worker_create")
    about = (
        "Run another worker and return its result. It has its own instructions and tools, and does not see this "
        "conversation. Several calls in one response run in parallel. Workers:"
    )
    reads = {"attachments": frozenset({"fs.read"})}  # the caller reads the files that it attaches
    schema = dict(_worker_call.input_schema)
    if is_complete:
        names = {**schema["properties"]["worker"], "enum": [name for name, _ in workers]}
        schema["properties"] = {**schema["properties"], "worker": names}
    return replace(_worker_call, description="\n".join([about, *lines]), input_schema=schema, also=reads)


def calling_tools(
    worker: Worker, find: Callable[[str], Worker], everyone: Callable[[], Iterable[WorkerListing]]
) -> tuple[Tool, ...]:
    """Return the tools to call and create workers that the worker file permits."""
    allowed, creates = worker.definition.allow_workers, can_create_workers(worker)
    if not allowed and not creates:
        return ()
    is_complete = not creates and EVERY_WORKER not in allowed
    call = make_call_tool(callable_workers(allowed, find, everyone), creates=creates, is_complete=is_complete)
    return (call, create_tool) if creates else (call,)


def callable_workers(
    allowed: Sequence[str], find: Callable[[str], Worker], everyone: Callable[[], Iterable[WorkerListing]]
) -> list[tuple[str, str | None]]:
    """Return name and description of the workers of an allow-list. A draft by a worker has no description."""
    if EVERY_WORKER in allowed:
        return [(listing.name, listing.description) for listing in everyone() if listing.status == "active"]
    workers: list[tuple[str, str | None]] = []
    for name in allowed:
        try:
            worker = find(name)
        except GuildError:  # it can be created later; a call of a missing worker is an error
            workers.append((name, None))
            continue
        is_generated = worker.path.parent.name == GENERATED
        workers.append((name, None if is_generated and worker.status == "draft" else worker.description))
    return workers


def can_cost(worker: Worker, *, priced: bool) -> bool:
    """Return True if the model has a price, or if the worker can call workers, whose models may have a price."""
    return priced or bool(worker.definition.allow_workers) or can_create_workers(worker)
