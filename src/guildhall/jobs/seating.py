"""A worker in a job: what it may use there, what it is told, and what it must give."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from guildhall.activities.model import READING, WRITING
from guildhall.core.errors import InvalidFile, Refused, UsageError
from guildhall.jobs.model import artifact_path
from guildhall.runs.purpose import Contract

if TYPE_CHECKING:
    from collections.abc import Mapping

    from guildhall.jobs.model import Dispatch
    from guildhall.workers.model import Worker

HOW_TO = """\
You work on a job by yourself. Nobody reads along, and what you merely say reaches nobody: report through your tools.
- update_summary: where you are, in a few sentences, whenever that changes. Begin with it.
- record_decision: each judgement call that you make on your own, with the reason.
- log_question: what you cannot decide and a person should. Go on as well as you can; with wait: true you get the \
answer before you go on, which may take hours: only where nothing sensible can be done without it."""
_MEMORY = "- store_memory: save facts, preferences and approaches that worked, for later jobs."
_RESULT = """\
- write_artifact: files that belong to the result; it is the only way to write one.
- submit_result: the result, once, when all of it is there. A job counts as done when it was submitted."""


def refuse_writing(worker: Worker) -> None:
    """Raises where a worker declares what it cannot have in a job."""
    definition = worker.definition
    writing = [f"tools: {name}" for name in WRITING if name in definition.tools]
    writing += [f"sandboxes.{name}: mode rw" for name, box in definition.sandboxes.items() if box.mode == "rw"]
    if writing:
        raise Refused(
            f"{worker.name} cannot take a job: it declares {', '.join(writing)}, and a job has its own way to write",
            where=worker.place,
            hint="Take out what is named (write_artifact writes files in a job), or use `guild run`.",
        )


def seated(worker: Worker) -> Worker:
    """The worker as it is in a job: it reads, and writes nothing but by the job's tools."""
    definition = worker.definition
    declared = [name for name in definition.tools if name not in (*READING, *WRITING)]
    boxes = {name: box.model_copy(update={"mode": "ro"}) for name, box in definition.sandboxes.items()}
    # What the result must look like is told by submit_result.
    changed = {"tools": (*READING, *declared), "sandboxes": boxes, "output_schema_ref": None}
    how_to = [HOW_TO, _MEMORY, _RESULT] if definition.base else [HOW_TO, _RESULT]
    told = "\n".join(how_to)
    return replace(
        worker,
        definition=definition.model_copy(update=changed),
        instructions=f"{worker.instructions.rstrip()}\n\n{told}\n",
    )


def first_message(dispatch: Dispatch) -> str:
    """What the worker is told first: the task, and its own part of the configuration as data."""
    if not dispatch.own:
        return dispatch.task
    shown = json.dumps(dispatch.own, indent=2, ensure_ascii=False)
    return f"{dispatch.task.rstrip()}\n\nThe configuration of this job, as JSON:\n{shown}"


def contract_of(worker: Worker, dispatch: Dispatch, schema: Mapping[str, Any] | None) -> Contract:
    """What the job must give: by the worker's file and by the dispatch."""
    try:
        own = tuple(map(artifact_path, worker.definition.completion.artifacts))
    except UsageError as error:
        raise InvalidFile(f"completion.{error.message}", where=worker.place, hint=error.hint) from None
    return Contract(artifacts=tuple(dict.fromkeys((*own, *dispatch.artifacts))), schema=schema)
