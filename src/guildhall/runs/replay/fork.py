"""Fork: creates a run from the first entries of another run's journal, to be resumed from there.

A run can be forked wherever its model would be asked next: after an answer whose calls have all ended.

Invariant: copied calls are not made again, and their cost does not count for the new run.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from guildhall.core.clock import Clock, stamp
from guildhall.core.config import anchored
from guildhall.core.errors import Conflict, UsageError
from guildhall.core.ids import RUN, new_id
from guildhall.models.catalog import AUTO
from guildhall.models.credentials import WITH_LOGIN
from guildhall.runs.execution.grants import has_price
from guildhall.runs.purpose import JobPurpose
from guildhall.runs.record import records
from guildhall.runs.record.entries import (
    Assembly,
    Entry,
    ModelAnswered,
    ModelAsked,
    ModelCallFailed,
    Payload,
    ToolEnded,
    ToolRefused,
)
from guildhall.workers.registry import normalize_model

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

    from guildhall.core.frame import Frame
    from guildhall.runs.execution.prepare import SourceOf
    from guildhall.runs.model import Run
    from guildhall.runs.record.history import History
    from guildhall.runs.record.journal import Journal
    from guildhall.store.engine import Store


@dataclass(frozen=True, kw_only=True)
class ForkResult:
    """A run that was made out of another one, paused: `resume` lets it go on."""

    run: str
    of: str
    at: int  # the last entry that was copied
    kind: str  # what that entry is


@dataclass(frozen=True, kw_only=True)
class Forks:
    """Forks the runs of a home."""

    store: Store
    clock: Clock
    history: History
    source_of: SourceOf
    budget_of: Callable[[Frame], float | None]

    async def fork(self, run_id: str, at: int, frame: Frame, model: str | None = None) -> ForkResult:
        """A new run with the entries of another one up to `at`, or up to the last place before it to go on from."""
        run = self.history.get(run_id)
        _refuse_team(run_id, self.history.workflow_of(run_id))
        if job := run.purpose_as(JobPurpose):
            raise Conflict(
                f"the run {run.id} does the job {job.id}, and a job cannot be forked",
                hint="Dispatch its task anew, with another model in its configuration if you like.",
            )
        journal = self.history.journal(run_id)
        journal.check_no_conversation("a conversation cannot be forked", hint="Begin another one with its worker.")
        last = journal.entries[-1].seq
        if not 0 <= at <= last:
            hint = f"`guild log {run_id}` shows them with their numbers."
            raise UsageError(f"the run {run_id} has no entry {at}: they go from 0 to {last}", hint=hint)
        end = find_fork_point(journal, at)
        new = new_id(RUN)
        first, source_name, priced = self._first(_as_top(run, journal, self.budget_of(frame)), frame, model)
        copied: list[Entry[Payload]] = [first, *(entry for entry in journal.entries if 0 < entry.seq <= end)]
        entries = [replace(entry, run=new, data=_marked(entry.data)) for entry in copied]
        row = self._row(run, new, end, source_name or run.model, priced=priced)
        if model is not None:
            row["request"]["override_model"] = first.data.model

        def write(connection: Connection) -> None:
            records.add_run(connection, **row)
            for entry in entries:
                records.add_entry(connection, entry)

        await self.store.write(write)
        return ForkResult(run=new, of=run_id, at=end, kind=journal.entries[end].kind)

    def _first(
        self, first: Entry[Assembly], frame: Frame, model: str | None
    ) -> tuple[Entry[Assembly], str | None, bool | None]:
        """The first entry, with another model where one is wanted; the model's name, and whether it has a price."""
        if model is None:
            return first, None, None
        wanted = anchored(normalize_model(model), frame.cwd)
        login = first.data.worker["definition"].get("runtime") == WITH_LOGIN
        source = self.source_of(wanted, frame, login)  # one that cannot be used is refused, before anything is made
        priced = has_price(source)
        bounds = dict(first.data.bounds)
        if not priced:
            if bounds["max_budget_usd"] is not None:
                raise UsageError(
                    f"the model {source.name} has no known price, so max_budget_usd of the run cannot be kept",
                    hint="Fork it with a model that has a price.",
                )
            bounds["budget"] = None
        named = source.name if wanted == AUTO else wanted
        return replace(first, data=replace(first.data, model=named, bounds=bounds)), source.name, priced

    def _row(self, run: Run, new: str, end: int, source_name: str, *, priced: bool | None) -> dict[str, Any]:
        known = run.usage.cost_usd is not None if priced is None else priced
        return {
            "id": new,
            "root": new,
            "worker": run.worker,
            "model": source_name,
            "status": "paused",
            "pause": "fork",
            "reason": f"forked from {run.id} after entry {end}",
            "request": {
                **asdict(run.request),
                "frame": run.frame.as_dict(),
                "forked_from": {"run": run.id, "at": end},
            },
            "kind": run.kind,
            "created_at": stamp(self.clock.now()),
            "cost_usd": 0.0 if known else None,
        }


def _refuse_team(run: str, workflow: str | None) -> None:
    """A run of a team goes on in its room, and all others there with it: one alone cannot."""
    if workflow is None:
        return
    what = "is a workflow" if run == workflow else f"belongs to the workflow {workflow}"
    raise Conflict(
        f"the run {run} {what}, and a workflow cannot be forked",
        hint=f"To try something else with its team: guild script {workflow} --out tests/NAME.yaml, change the answers "
        "under `workers:`, and `guild test` it; or start the workflow again with another model: --override-model.",
    )


def _as_top(run: Run, journal: Journal, budget: float | None) -> Entry[Assembly]:
    """The first entry. A run that another one had called spent of that one's budget: alone it has the command's."""
    first = journal.all(Assembly)[0]
    if run.parent is None or run.usage.cost_usd is None:
        return first
    return replace(first, data=replace(first.data, bounds={**first.data.bounds, "budget": budget}))


def find_fork_point(journal: Journal, at: int) -> int:
    """The last entry at or before `at` after which the run can go on."""
    end = 0
    for answer in journal.all(ModelAnswered):
        closed = _closed(journal, answer)
        if closed is None or closed > at:
            break
        end = closed
    return end


def _closed(journal: Journal, answer: Entry[ModelAnswered]) -> int | None:
    """The entry with which all of an answer was done; None: the run did not, or would not, go on after it."""
    key = answer.key or ""
    calls = [part for part in answer.data.response["parts"] if part["part_kind"] == "tool-call"]
    ends = [journal.last(f"{key}/{call['tool_call_id']}", ToolEnded, ToolRefused) for call in calls]
    done = [end.seq for end in ends if end is not None]
    went_on = journal.last(f"m{int(key[1:]) + 1}", ModelAsked) is not None
    if not went_on and (not calls or len(done) < len(calls)):
        return None
    return max([answer.seq, *done])


def _marked(data: Payload) -> Payload:
    """Return the payload of a copied entry. The other run paid for its model calls."""
    return replace(data, copied=True) if isinstance(data, ModelAsked | ModelCallFailed | ModelAnswered) else data
