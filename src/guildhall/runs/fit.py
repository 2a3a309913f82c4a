"""Whether a worker's runtime can be given the model that was chosen for it, and its tools."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from guildhall.core.errors import Conflict, ModelUnusable, Refused, ToolUnavailable
from guildhall.models.catalog import AUTO, AUTO_MODELS, CURSOR, REPLAY, SCRIPT
from guildhall.policy.risk import judge_risk
from guildhall.runs.record.entries import ToolStarted
from guildhall.runtimes.catalog import ROWS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from guildhall.runs.journal import Journal
    from guildhall.tools.model import Tool
    from guildhall.workers.choose import Choice
    from guildhall.workers.model import Worker


def fitting(worker: Worker, choice: Choice) -> Choice:
    """The choice as the worker's runtime takes it: `auto` is a model of a provider of its own."""
    row = ROWS[worker.definition.runtime]
    if row.routed and choice.model.startswith(CURSOR):
        raise ModelUnusable(
            f"{choice.model} is a model of Cursor's, which only its own program can ask",
            where=worker.place,
            hint="Write `runtime: cursor` into the worker's file, or name another model.",
        )
    if not row.providers or (row.routed and choice.model.startswith((SCRIPT, REPLAY))):
        return choice
    if choice.model == AUTO:
        return replace(choice, model=AUTO_MODELS.get(row.providers[0], f"{row.providers[0]}:{AUTO}"))
    if choice.model.partition(":")[0] in row.providers:
        return choice
    taken = " or ".join(f"`{provider}:...`" for provider in row.providers)
    raise ModelUnusable(
        f"runtime {row.name} cannot be given the model {choice.model}",
        where=worker.place,
        hint=f"It takes {taken}{' and scripts' if row.routed else ''}; any other model runs with `runtime: pydantic`.",
    )


def with_own(worker: Worker, tools: Mapping[str, frozenset[str]]) -> dict[str, frozenset[str]]:
    """What a worker's tools can do to the world, and what its runtime can by itself."""
    row = ROWS[worker.definition.runtime]
    return {**tools, **({row.title: frozenset({"net"})} if row.network else {})}


def refuse_unguarded(worker: Worker, tools: Mapping[str, frozenset[str]], around: frozenset[str]) -> None:
    """Refuses the three together where the way out is the runtime's own: nobody could be asked before it is used."""
    row = ROWS[worker.definition.runtime]
    if row.title in judge_risk(with_own(worker, tools), accepted=worker.definition.accepts_risk, around=around).guarded:
        raise ToolUnavailable(
            f"runtime {row.name}: {row.title} reaches the network by itself, and could carry out what the worker reads",
            where=worker.place,
            hint="Take away what reads private files, or say `accepts_risk: true` in the file.",
        )


def refuse_native(worker: Worker, tools: Iterable[Tool]) -> None:
    """Refuses tools that the provider would have to bring, where the runtime cannot ask for them."""
    row = ROWS[worker.definition.runtime]
    if row.program is not None and (native := next((tool.name for tool in tools if tool.native), None)):
        raise ToolUnavailable(
            f"tools: {native} of the provider is not to be had with runtime {row.name}",
            where=worker.place,
            hint="Name a search engine in `web_search:` of the settings: see docs/tools-exec.md.",
        )


def refuse_from_the_beginning(worker: Worker, tools: Iterable[Tool], journal: Journal) -> None:
    """Refuses to go on with a run whose runtime would begin it anew, when it has done what must not be done twice."""
    row = ROWS[worker.definition.runtime]
    if row.routed:
        return
    harmless = {tool.name for tool in tools if tool.repeatable and all(c.endswith(".read") for c in tool.capabilities)}
    called = [entry.data.tool for entry in journal.all(ToolStarted)]
    if done := dict.fromkeys(name for name in called if name not in harmless):
        said = f"{journal.run} cannot go on: {row.title} would begin anew, and do again what it has done"
        hint = f"See what it did: guild log {journal.run}. Hand the rest to a new run: guild run {worker.name} ..."
        raise Conflict(f"{said}: {', '.join(done)}", hint=hint)


def refuse_talking(worker: Worker) -> None:
    """Refuses a conversation with a worker whose runtime could not be walked through it again."""
    row = ROWS[worker.definition.runtime]
    if not row.routed:
        said = f"runtime {row.name}: {row.title} asks its model itself, so that a conversation is on no record"
        raise Refused(
            f"{said}: after a pause it could not be gone on with",
            where=worker.place,
            hint="Choose another runtime for conversations with the worker, such as `runtime: pydantic`.",
        )


def refuse_unrecorded(worker: Worker, run: str) -> None:
    """Refuses to play a run again whose model was not asked at the model door: its answers are on no record."""
    row = ROWS[worker.definition.runtime]
    if not row.routed:
        said = f"{run} cannot be played again: {row.title} asks its model itself, so the answers are not on record"
        raise Conflict(said, hint=f"What it did with its tools is: guild log {run}")
