"""Worker creation: carries out `worker_create`, with which a run writes a new worker that the user approved.

The user sees the complete files and the plan of the new worker. Afterwards the run tree can call the new worker, which
is a draft. In the mode `approve_all` nothing is asked, and in `strict` the call is refused.

Does not write worker files: `workers.create` does.

Invariant: a run tree calls a created worker only if its file, apart from the status, is as approved. A repeated call
creates no second worker.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from guildhall.core.errors import GuildError, Refused
from guildhall.core.ids import fingerprint
from guildhall.runs.record.entries import WorkerCreated
from guildhall.tools.definition import tool
from guildhall.tools.model import ToolCall, ToolResult
from guildhall.workers.create import Draft, draft, spec_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from guildhall.core.config import Settings
    from guildhall.runs.execution.ledger import LiveLedger
    from guildhall.runs.execution.prepare import Prepared
    from guildhall.runs.record.journal import Journal
    from guildhall.workers.model import Listed, Worker

TOOL = "worker_create"
RULES = frozenset({TOOL, "worker.create"})


@tool(name=TOOL, capabilities={"worker.create"}, repeatable=True, runs_in="run")
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


def may_create(worker: Worker) -> bool:
    """Whether its file says that it may write workers: by a rule that allows it."""
    return any(rule.name in RULES and rule.allowed for rule in worker.rules)


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
    everyone: Iterable[Listed],
    planned: Callable[[Worker], str],
) -> ToolResult:
    """Carries out a call of `worker_create`. The same call makes the same worker, also after a crash.

    `planned` says what could happen if a worker ran.
    """
    assembled = prepared.assembled
    try:
        new = draft(
            spec_of(call.arguments or {}),
            settings.worker_creation,
            prepared.frame,
            taken=[listed.name for listed in everyone],
            creator=assembled.worker,
            by=f"the worker {assembled.worker.name} in {prepared.run}",
        )
        if ledger.journal.last(call.key, WorkerCreated) is None:
            if not new.is_saved() and (refused := await _refusal(call, new, prepared, ledger, planned)) is not None:
                return refused
            new.save()
            files = [str(path) for path in new.files]
            made = WorkerCreated(name=new.worker.name, digest=identity_of(new.worker), files=files)
            await ledger.journal.append(made, key=call.key, durable=True)
    except GuildError as error:
        return ToolResult.error(f"{TOOL}: {error}")
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
    timeout = next((rule.timeout for rule in prepared.assembled.rules if rule.name in RULES), None)
    approval, note = await ledger.confirm(
        call, _as_shown(new, planned(_as_if_saved(new.worker))), shown=[new.text, new.schema], seconds=timeout
    )
    if approval == "approved":
        return None
    said = (
        "Nobody answered the request for approval in time, so the worker was not made. This is not a refusal."
        if approval == "timed_out"
        else "A person refused this worker."
    )
    return ToolResult.error(f"{said} {note}" if note else said)


def _as_if_saved(worker: Worker) -> Worker:
    """The worker, for a plan: its schema is not there yet, and is shown beside it."""
    return replace(worker, definition=worker.definition.model_copy(update={"output_schema_ref": None}))


def _as_shown(new: Draft, plan: str) -> str:
    """All that the person approves: the files as they will be, what does not go into them, and what could happen."""
    parts = [f"{new.path}\n\n{new.text.rstrip()}"]
    if new.schema is not None:
        parts.append(f"{new.schema_path}\n\n{new.schema.rstrip()}")
    if new.left_out:
        parts.append("Of worker_creation in your settings it does not get:\n" + "\n".join(new.left_out))
    parts.append(f"What could happen when it runs:\n{plan}")
    return "\n\n".join(parts)
