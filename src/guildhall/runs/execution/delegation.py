"""Delegation: checks `worker_call`, returns its result, and executes `worker_create`, which writes an approved worker.

Does not start the called run (`runs.execution.runs`) and does not write worker files (`workers.generated_workers`).

Invariant: a run tree calls a created worker only if its file, apart from the status, is as approved. A repeated call
creates no second worker.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from guildhall.core.errors import ErrorInfo, GuildError, LimitReached, Refused, RuntimeFailed
from guildhall.core.ids import fingerprint
from guildhall.core.text_checks import did_you_mean
from guildhall.runs.assembly.callees import CALL, CREATE, CREATE_RULES
from guildhall.runs.record.entries import WorkerCreated
from guildhall.runtimes.model import Assignment, Doors, Outcome
from guildhall.tools.model import ToolCall, ToolResult
from guildhall.workers.definition import EVERY_WORKER
from guildhall.workers.generated_workers import Draft, draft, parse_spec
from guildhall.workers.registry import FILE_SUFFIXES

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse
    from pydantic_ai.usage import RequestUsage

    from guildhall.core.config import Settings
    from guildhall.models.model import OnText, Query
    from guildhall.runs.execution.call_ledger import CallLedger
    from guildhall.runs.execution.preparation import Prepared
    from guildhall.runs.model import Run
    from guildhall.runs.record.journal import Journal
    from guildhall.workers.model import Worker, WorkerListing

MAX_DEPTH = 8  # of child runs, including the root run


class SingleCallRuntime:
    """A runtime without a model: it makes one `worker_call` and returns the result."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self._arguments = arguments

    async def execute(self, assignment: Assignment, doors: Doors) -> Outcome:
        if all(tool["name"] != CALL for tool in assignment.tools):
            message = "cannot call a worker: the calling worker has no tool `worker_call`"
            raise Refused(message, hint="Add `allow_workers:` to the worker file.")
        result = await doors.call_tool(ToolCall(key="d1/call", tool=CALL, arguments=self._arguments))
        if result.is_error:
            raise RuntimeFailed(result.text)
        return Outcome(output=result.text, messages=[])


@dataclass(frozen=True)
class NoModel:
    """The model of a run that calls no model."""

    name: str

    def cost(self, usage: RequestUsage, service_tier: str | None = None) -> float | None:
        return 0.0

    def accepts(self, media_type: str) -> bool:
        return True

    def upstream(self, api: str) -> None:
        return None

    async def unsupported_settings(self, settings: Mapping[str, Any]) -> list[str]:
        return []

    async def answer(self, query: Query, on_text: OnText) -> ModelResponse:
        raise AssertionError


class ChildStopped(Exception):
    """Raised if a child run has stopped without an end, so that its parent stops too."""


def resolve_callee(name: str, allowed: Sequence[str], created: Collection[str] = ()) -> str:
    """Return the entry of the allow-list that permits a call of this worker. Raise Refused if no entry does."""
    for entry in (*created, *allowed):
        if name in (entry, entry.rpartition("/")[2]):
            return entry
    # No path of a file, because the caller itself can have written that file.
    if EVERY_WORKER in allowed and not name.endswith(FILE_SUFFIXES):
        return name
    known = [*allowed, *created]
    message = f"worker_call: calling {name!r} is not allowed. Allowed workers: {', '.join(known) or 'none'}."
    raise Refused(message, hint=did_you_mean(name, known))


def input_text(data: object) -> str:
    return data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, indent=2)


def call_result(run: Run) -> ToolResult:
    """Return the result of a call whose run has ended. Raise LimitReached if the run reached a limit of its parent."""
    if run.status == "completed":
        return ToolResult.of(input_text(run.output))
    error = run.error or ErrorInfo(code="error", message=run.reason or "no reason given")
    message = error["message"]
    if is_at_parent_limit(run):
        raise LimitReached(message, limit=error.get("limit"), run=error.get("run"), hint=error.get("hint"))
    return ToolResult.error(f"The worker {run.worker} did not finish ({run.id} {run.status}): {message}")


def is_at_parent_limit(run: Run) -> bool:
    """Return True if the run failed at a limit of its parent or of another ancestor."""
    if run.error is None or run.error["code"] != LimitReached.code:
        return False
    return run.error.get("run") not in (None, run.id)


def created_workers(journals: Iterable[Journal]) -> dict[str, str]:
    """Return the names of the workers that these runs have created, with the digests of the approved files."""
    entries = [entry for journal in journals for entry in journal.all(WorkerCreated)]
    return {entry.data.name: entry.data.digest for entry in entries}


def approved_digest(worker: Worker) -> str:
    """Return a digest of the worker file without the status, which the user may change later."""
    return fingerprint(worker.definition.model_dump(mode="json", exclude={"status"}))


def check_unchanged(worker: Worker, created: Mapping[str, str]) -> None:
    """Raise Refused if the file of a created worker was changed after its approval."""
    if approved_digest(worker) != created[worker.name]:
        message = f"cannot call {worker.name!r}: its file was changed after its approval"
        raise Refused(message, where=worker.place, hint="Create another worker.")


async def create_worker(
    call: ToolCall,
    prepared: Prepared,
    ledger: CallLedger,
    settings: Settings,
    everyone: Iterable[WorkerListing],
    plan_text: Callable[[Worker], Awaitable[str]],
) -> ToolResult:
    """Execute a call of `worker_create`. A repeated call creates no second worker, even after a crash."""
    assembled = prepared.assembled
    try:
        new = draft(
            parse_spec(call.arguments or {}),
            settings.worker_creation,
            prepared.frame,
            existing=everyone,
            creator=assembled.worker,
            author=f"the worker {assembled.worker.name} in {prepared.run_id}",
        )
        if ledger.journal.last(call.key, WorkerCreated) is None:
            denial = None if new.is_saved() else await _ask_for_approval(call, new, prepared, ledger, plan_text)
            if denial is not None:
                return denial
            new.save()
            files = [str(path) for path in new.files]
            created = WorkerCreated(name=new.worker.name, digest=approved_digest(new.worker), files=files)
            await ledger.journal.append(created, key=call.key, durable=True)
    except GuildError as error:
        return ToolResult.error(f"{CREATE}: {error}")
    return ToolResult.of(f"Created the worker {new.worker.name} as a draft. Call it with worker_call.")


async def _ask_for_approval(
    call: ToolCall, new: Draft, prepared: Prepared, ledger: CallLedger, plan_text: Callable[[Worker], Awaitable[str]]
) -> ToolResult | None:
    """Ask for approval of a new worker. Return the error for the model, or None if the worker may be created."""
    mode = prepared.assembled.mode
    if mode == "approve_all":
        return None
    if mode == "strict":
        return ToolResult.error("Not permitted: a new worker needs approval, and this run may not ask for approval.")
    timeout = next((rule.timeout for rule in prepared.assembled.rules if rule.name in CREATE_RULES), None)
    # The file of the output schema does not exist yet, so its text is shown beside the plan.
    without_schema = new.worker.definition.model_copy(update={"output_schema_ref": None})
    body = _approval_body(new, await plan_text(replace(new.worker, definition=without_schema)))
    reasons = [rule.description for rule in prepared.assembled.rules if rule.name in CREATE_RULES and rule.description]
    because = ": ".join(["a new worker always requires approval", *reasons])
    approval, note = await ledger.confirm(call, body, because=because, data=[new.text, new.schema], timeout_s=timeout)
    if approval == "approved":
        return None
    message = (
        "Approval timed out; the worker was not created. This is not a denial."
        if approval == "timed_out"
        else "The user denied this worker."
    )
    return ToolResult.error(f"{message} {note}" if note else message)


def _approval_body(new: Draft, plan: str) -> str:
    """Return the text that the user approves: the new files, the settings that they leave out, and the plan."""
    parts = [f"{new.path}\n\n{new.text.rstrip()}"]
    if new.schema is not None:
        parts.append(f"{new.schema_path}\n\n{new.schema.rstrip()}")
    if new.omitted_rights:
        parts.append("Not included from worker_creation in your settings:\n" + "\n".join(new.omitted_rights))
    parts.append(f"Plan of its runs:\n{plan}")
    return "\n\n".join(parts)
