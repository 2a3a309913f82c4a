"""Delegation: checks and answers `worker_call`, and carries out `worker_create`, which writes an approved worker.

Does not start the called run (`runs.execution.runs`) and does not write worker files (`workers.create`).

Invariant: a run tree calls a created worker only if its file, apart from the status, is as approved. A repeated call
creates no second worker.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from guildhall.core.errors import ErrorInfo, GuildError, LimitReached, Refused, RuntimeFailed
from guildhall.core.ids import fingerprint
from guildhall.core.text import did_you_mean
from guildhall.runs.assembly.callees import CALL, CREATE, CREATE_RULES
from guildhall.runs.record.entries import WorkerCreated
from guildhall.runtimes.model import Assignment, Doors, Outcome
from guildhall.tools.model import ToolCall, ToolResult
from guildhall.workers.create import Draft, draft, parse_spec
from guildhall.workers.definition import EVERY_WORKER
from guildhall.workers.registry import FILE_SUFFIXES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from pydantic_ai.messages import ModelResponse
    from pydantic_ai.usage import RequestUsage

    from guildhall.core.config import Settings
    from guildhall.models.model import OnText, Query
    from guildhall.runs.execution.ledger import LiveLedger
    from guildhall.runs.execution.prepare import Prepared
    from guildhall.runs.model import Run
    from guildhall.runs.record.journal import Journal
    from guildhall.workers.model import Worker, WorkerListing

DEEPEST = 8  # runs below one another, the one at the top included


class OneCall:
    """Runs a worker without its model: it calls another worker, as the code that uses it says, and that is all."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self._arguments = arguments

    async def execute(self, assignment: Assignment, doors: Doors) -> Outcome:
        if all(tool["name"] != CALL for tool in assignment.tools):
            raise Refused(
                "the worker may call no other one", hint="Name those that it may in `allow_workers:` of its file."
            )
        result = await doors.tool(ToolCall(key="d1/call", tool=CALL, arguments=self._arguments))
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


def permitted(name: str, allowed: Sequence[str], created: Collection[str] = ()) -> str:
    """The worker that is meant, if it may be called: by the allow-list, or because this tree of runs has made it."""
    for entry in (*created, *allowed):
        if name in (entry, entry.rpartition("/")[2]):
            return entry
    if EVERY_WORKER in allowed and not name.endswith(
        FILE_SUFFIXES
    ):  # a file may be one that the worker itself has written
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


def created(journals: Iterable[Journal]) -> dict[str, str]:
    """The workers that the runs of these journals have made: names, with the text that was approved as a digest."""
    entries = [entry for journal in journals for entry in journal.all(WorkerCreated)]
    return {entry.data.name: entry.data.digest for entry in entries}


def identity_of(worker: Worker) -> str:
    """What was approved of a worker: all that its file says but the status, which a person may promote."""
    return fingerprint(worker.definition.model_dump(mode="json", exclude={"status"}))


def not_changed(worker: Worker, made: Mapping[str, str]) -> None:
    """Raises where a worker that this tree has made is no longer the one that was approved."""
    if identity_of(worker) != made[worker.name]:
        raise Refused(
            f"the worker {worker.name!r} is not what was approved", where=worker.place, hint="Make another one."
        )


async def create(
    call: ToolCall,
    prepared: Prepared,
    ledger: LiveLedger,
    settings: Settings,
    everyone: Iterable[WorkerListing],
    planned: Callable[[Worker], str],
) -> ToolResult:
    """Carry out a call of `worker_create`. Repeating the call creates no second worker, even after a crash."""
    assembled = prepared.assembled
    try:
        new = draft(
            parse_spec(call.arguments or {}),
            settings.worker_creation,
            prepared.frame,
            existing_names=[listed.name for listed in everyone],
            creator=assembled.worker,
            author=f"the worker {assembled.worker.name} in {prepared.run}",
        )
        if ledger.journal.last(call.key, WorkerCreated) is None:
            if not new.is_saved() and (refused := await _refusal(call, new, prepared, ledger, planned)) is not None:
                return refused
            new.save()
            files = [str(path) for path in new.files]
            made = WorkerCreated(name=new.worker.name, digest=identity_of(new.worker), files=files)
            await ledger.journal.append(made, key=call.key, durable=True)
    except GuildError as error:
        return ToolResult.error(f"{CREATE}: {error}")
    return ToolResult.of(f"The worker {new.worker.name} is made, as a draft. Call it with worker_call.")


async def _refusal(
    call: ToolCall, new: Draft, prepared: Prepared, ledger: LiveLedger, planned: Callable[[Worker], str]
) -> ToolResult | None:
    """What the model is told if a person, or the way the run was started, does not want the worker."""
    mode = prepared.assembled.mode
    if mode == "approve_all":
        return None
    if mode == "strict":
        return ToolResult.error("Not permitted: nobody may be asked in this run, and a new worker needs approval.")
    timeout = next((rule.timeout for rule in prepared.assembled.rules if rule.name in CREATE_RULES), None)
    # The file of the output schema does not exist yet: its text is shown beside the plan.
    without_schema = new.worker.definition.model_copy(update={"output_schema_ref": None})
    body = _as_shown(new, planned(replace(new.worker, definition=without_schema)))
    approval, note = await ledger.confirm(call, body, shown=[new.text, new.schema], seconds=timeout)
    if approval == "approved":
        return None
    said = (
        "Nobody answered the request for approval in time, so the worker was not made. This is not a refusal."
        if approval == "timed_out"
        else "A person refused this worker."
    )
    return ToolResult.error(f"{said} {note}" if note else said)


def _as_shown(new: Draft, plan: str) -> str:
    """All that the person approves: the files as they will be, what does not go into them, and what could happen."""
    parts = [f"{new.path}\n\n{new.text.rstrip()}"]
    if new.schema is not None:
        parts.append(f"{new.schema_path}\n\n{new.schema.rstrip()}")
    if new.omitted_rights:
        parts.append("Of worker_creation in your settings it does not get:\n" + "\n".join(new.omitted_rights))
    parts.append(f"What could happen when it runs:\n{plan}")
    return "\n\n".join(parts)
