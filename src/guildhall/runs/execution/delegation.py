"""Delegation: defines `worker_call`, checks the allowed workers, and converts the result of a called run.

A call is a run of its own below the caller's run, with its own tools. At most 8 runs are below each other, including
the run at the top. A run can also make a single call without asking a model.

Does not start the called run: `runs.execution.runs` does.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from guildhall.core.errors import ErrorInfo, GuildError, LimitReached, Refused, RuntimeFailed
from guildhall.core.text import did_you_mean
from guildhall.runs.execution.worker_creation import create_tool, may_create
from guildhall.runtimes.model import Assignment, Doors, Outcome
from guildhall.tools.definition import tool
from guildhall.tools.model import Tool, ToolCall, ToolResult
from guildhall.workers.definition import EVERY_WORKER
from guildhall.workers.model import GENERATED, Listed, Worker
from guildhall.workers.registry import FILES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from pydantic_ai.messages import ModelResponse
    from pydantic_ai.usage import RequestUsage

    from guildhall.models.model import OnText, Query
    from guildhall.runs.model import Run

DEEPEST = 8  # runs below one another, the one at the top included


class OneCall:
    """Runs a worker without its model: it calls another worker, as the code that uses it says, and that is all."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self._arguments = arguments

    async def execute(self, assignment: Assignment, doors: Doors) -> Outcome:
        if all(tool["name"] != _worker_call.name for tool in assignment.tools):
            raise Refused(
                "the worker may call no other one", hint="Name those that it may in `allow_workers:` of its file."
            )
        result = await doors.tool(ToolCall(key="d1/call", tool="worker_call", arguments=self._arguments))
        if result.is_error:
            raise RuntimeFailed(result.text)
        return Outcome(output=result.text, messages=[])


@dataclass(frozen=True)
class Unasked:
    """Stands where a run's model would: it is never asked, and costs nothing."""

    name: str

    def cost(self, usage: RequestUsage) -> float | None:
        return 0.0

    def takes(self, media_type: str) -> bool:
        return True

    def upstream(self, api: str) -> None:
        return None

    async def answer(self, query: Query, on_text: OnText) -> ModelResponse:
        raise AssertionError


class ChildStopped(Exception):
    """A run that was called has stopped for now, and so does the one that called it."""


@tool(name="worker_call", capabilities={"worker.call"}, repeatable=True, runs_in="run")
def _worker_call(worker_name: str, input_data: str | dict[str, Any], attachments: list[str] | None = None) -> str:
    """Give another worker a task, and get its result.

    Args:
        worker_name: The worker's name.
        input_data: All that it needs to know and is to do, as text or as a JSON object.
        attachments: Files to hand over: sandbox/path in one of your own sandboxes, or one that you were given.
    """
    raise AssertionError


def call_tool(callable_workers: Iterable[tuple[str, str | None]], *, creates: bool) -> Tool:
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


def tree_tools(
    worker: Worker, find: Callable[[str], Worker], everyone: Callable[[], Iterable[Listed]]
) -> tuple[Tool, ...]:
    """The tools with which a worker calls others and writes them, as far as its file says that it may."""
    allowed, creates = worker.definition.allow_workers, may_create(worker)
    if not allowed and not creates:
        return ()
    call = call_tool(callable_workers(allowed, find, everyone), creates=creates)
    return (call, create_tool) if creates else (call,)


def callable_workers(
    allowed: Sequence[str], find: Callable[[str], Worker], everyone: Callable[[], Iterable[Listed]]
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


def permitted(name: str, allowed: Sequence[str], created: Collection[str] = ()) -> str:
    """The worker that is meant, if it may be called: by the allow-list, or because this tree of runs has made it."""
    for entry in (*created, *allowed):
        if name in (entry, entry.rpartition("/")[2]):
            return entry
    if EVERY_WORKER in allowed and not name.endswith(FILES):  # a file may be one that the worker itself has written
        return name
    raise Refused(f"worker_call: you may not call {name!r}.", hint=did_you_mean(name, [*allowed, *created]))


def as_input(data: object) -> str:
    return data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, indent=2)


def result_of(run: Run) -> ToolResult:
    """What the caller is told of a run that has ended. A limit that is not the run's own is the caller's too."""
    if run.status == "completed":
        return ToolResult.of(as_input(run.output))
    error = run.error or ErrorInfo(code="error", message=run.reason or "no reason given")
    said = error["message"]
    if limit_above(run):
        raise LimitReached(said, limit=error.get("limit"), run=error.get("run"), hint=error.get("hint"))
    return ToolResult.error(f"The worker {run.worker} did not finish ({run.id} {run.status}): {said}")


def limit_above(run: Run) -> bool:
    """Whether a run stopped at a limit of one that called it, so that with more it can go on."""
    if run.error is None or run.error["code"] != LimitReached.code:
        return False
    return run.error.get("run") not in (None, run.id)
