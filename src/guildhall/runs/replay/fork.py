"""Fork: creates a run from the first entries of another run's journal, to be resumed from there.

A run can be forked before each model call: after an answer whose tool calls have all ended.

Invariant: copied calls are not made again, and their cost does not count for the new run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from guildhall.core.clock import Clock, stamp
from guildhall.core.config import resolve_script_path
from guildhall.core.errors import Conflict, UsageError
from guildhall.core.ids import RUN, new_id
from guildhall.models.catalog import AUTO
from guildhall.models.credentials import LOGIN_RUNTIME
from guildhall.runs.assembly.preflight import has_price
from guildhall.runs.purpose import JobPurpose
from guildhall.runs.record import entries, records
from guildhall.runs.record.entries import Assembly, Entry, Payload
from guildhall.workers.registry import normalize_model

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from guildhall.core.request_frame import Frame
    from guildhall.runs.assembly.preflight import SourceOf
    from guildhall.runs.model import Run
    from guildhall.runs.record.journal import Journal
    from guildhall.runs.record.queries import History
    from guildhall.store.engine import Store


@dataclass(frozen=True, kw_only=True)
class ForkResult:
    """A new paused run. Resuming it continues after the last copied entry."""

    run: str
    of: str
    at: int  # the last copied entry
    kind: str  # of that entry


@dataclass(frozen=True, kw_only=True)
class Forks:
    """Forks the runs of a home."""

    store: Store
    clock: Clock
    history: History
    source_of: SourceOf
    budget_of: Callable[[Frame], float | None]

    async def fork(self, run_id: str, at: int, frame: Frame, model: str | None = None) -> ForkResult:
        """Create a run with the entries of another run up to the last fork point at or before `at`."""
        run = self.history.get(run_id)
        _check_no_workflow(run_id, self.history.workflow_of(run_id))
        if job := run.purpose_as(JobPurpose):
            raise Conflict(
                f"cannot fork {run.id}: it belongs to the job {job.id}",
                hint="Dispatch the task again. Its configuration can name another model.",
            )
        journal = self.history.journal(run_id)
        journal.check_no_conversation("fork", hint="Start a new conversation.")
        last = journal.entries[-1].seq
        if not 0 <= at <= last:
            hint = f"List the entries: guild log {run_id}"
            raise UsageError(f"invalid entry {at}: {run_id} has the entries 0 to {last}", hint=hint)
        end = find_fork_point(journal, at)
        new = new_id(RUN)
        first, source_name, priced = self._first_entry(_as_root(run, journal, self.budget_of(frame)), frame, model)
        copied: list[Entry[Payload]] = [first, *(entry for entry in journal.entries if 0 < entry.seq <= end)]
        copies = [replace(entry, run=new, data=_mark_copied(entry.data)) for entry in copied]
        row = self._run_row(run, new, end, source_name or run.model, priced=priced)
        if model is not None:
            row["request"]["override_model"] = first.data.model

        def write(connection: Connection) -> None:
            records.add_run(connection, **row)
            for entry in copies:
                records.add_entry(connection, entry)

        await self.store.write(write)
        return ForkResult(run=new, of=run_id, at=end, kind=journal.entries[end].kind)

    def _first_entry(
        self, first: Entry[Assembly], frame: Frame, model: str | None
    ) -> tuple[Entry[Assembly], str | None, bool | None]:
        """Return entry 0 with the wanted model, the name of the model, and True if it has a price."""
        if model is None:
            return first, None, None
        model_name = resolve_script_path(normalize_model(model), frame.cwd)
        has_login = first.data.worker["definition"].get("runtime") == LOGIN_RUNTIME
        source = self.source_of(model_name, frame, has_login)  # raises before anything is written
        priced = has_price(source)
        bounds = dict(first.data.bounds)
        if not priced:
            if bounds["max_budget_usd"] is not None:
                raise UsageError(
                    f"the model {source.name} has no known price, so max_budget_usd cannot be enforced",
                    hint="Choose a model that has a price.",
                )
            bounds["budget"] = None
        recorded_name = source.name if model_name == AUTO else model_name
        return replace(first, data=replace(first.data, model=recorded_name, bounds=bounds)), source.name, priced

    def _run_row(self, run: Run, new: str, end: int, source_name: str, *, priced: bool | None) -> dict[str, Any]:
        has_cost = run.usage.cost_usd is not None if priced is None else priced
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
            "cost_usd": 0.0 if has_cost else None,
        }


def _check_no_workflow(run_id: str, workflow: str | None) -> None:
    """Raise Conflict for a run of a workflow, which shares its room with the other agents."""
    if workflow is None:
        return
    reason = "it is a workflow" if run_id == workflow else f"it belongs to the workflow {workflow}"
    raise Conflict(
        f"cannot fork {run_id}: {reason}",
        hint=f"Export it (guild script {workflow} --out tests/NAME.yaml), change the answers under `workers:`, and run "
        "`guild test`. Or start the workflow again with --override-model.",
    )


def _as_root(run: Run, journal: Journal, budget: float | None) -> Entry[Assembly]:
    """Return entry 0. A child run shared its parent's budget, so its fork gets the budget of the settings."""
    first = journal.all(Assembly)[0]
    if run.parent is None or run.usage.cost_usd is None:
        return first
    return replace(first, data=replace(first.data, bounds={**first.data.bounds, "budget": budget}))


def find_fork_point(journal: Journal, at: int) -> int:
    """Return the last entry at or before `at` after which the run can be resumed."""
    end = 0
    for answer in journal.all(entries.ModelAnswered):
        last = _last_entry_of(journal, answer)
        if last is None or last > at:
            break
        end = last
    return end


def _last_entry_of(journal: Journal, answer: Entry[entries.ModelAnswered]) -> int | None:
    """Return the entry that ends the last call of an answer, or None if the run cannot continue after it."""
    key = answer.key or ""
    calls = [part for part in answer.data.response["parts"] if part["part_kind"] == "tool-call"]
    ends = [journal.last(f"{key}/{call['tool_call_id']}", entries.ToolEnded, entries.ToolRefused) for call in calls]
    done = [end.seq for end in ends if end is not None]
    has_next = journal.last(f"m{int(key[1:]) + 1}", entries.ModelAsked) is not None
    if not has_next and (not calls or len(done) < len(calls)):
        return None
    return max([answer.seq, *done])


def _mark_copied(data: Payload) -> Payload:
    """Return the payload of a copied entry. The other run paid for its model calls."""
    paid = entries.ModelAsked | entries.ModelCallFailed | entries.ModelAnswered
    return replace(data, copied=True) if isinstance(data, paid) else data
