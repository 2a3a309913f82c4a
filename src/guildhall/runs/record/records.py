"""SQL of runs, journals and asks. Also ends runs that no process executes.

Does not execute runs: `runs.execution` does.

Invariant: no other module of the package accesses these tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any, cast

from sqlalchemy import Integer, bindparam, func, insert, literal_column, select, update

from guildhall.core.request_frame import RecordedFrame
from guildhall.runs.model import (
    ENDED,
    HALL,
    OUTLIVING_KINDS,
    Answer,
    Ask,
    AskKind,
    ForkOrigin,
    Question,
    Run,
    SegmentEnd,
    Usage,
    request_from_record,
)
from guildhall.runs.record.entries import Ended, Entry, Payload, Unjudged
from guildhall.store.tables import asks, journal, runs

if TYPE_CHECKING:
    from sqlalchemy import CTE, ColumnElement, Connection, RowMapping

    from guildhall.core.errors import ErrorInfo

# runs

_ROWID = literal_column("runs.rowid", Integer)  # the order of creation
_PROGRESS = ("model_answered", "tool_ended", "worker_created", "said")  # entries of work that is not repeated
_other = runs.alias()
_TREE_COST = select(func.sum(_other.c.cost_usd)).where(_other.c.root == runs.c.id).scalar_subquery()
_RUNS = select(runs, _TREE_COST.label("tree_cost_usd"))
# Frequent statements are built once: building one costs more than executing it.
_ADD_RUN = insert(runs)
_CHANGE_RUN = update(runs).where(runs.c.id == bindparam("which"))
_FIND_RUN = _RUNS.where(runs.c.id == bindparam("which"))
_RUN_OF_CALL = _RUNS.where(runs.c.parent == bindparam("by"), runs.c.parent_call == bindparam("call"))
_RUNS_OF_WORKER = select(func.count()).where(
    runs.c.root == bindparam("top"), runs.c.worker == bindparam("whose"), runs.c.kind != "workflow"
)
# Columns with the name and the value of a field of Run.
_FIELDS = [item.name for item in fields(Run) if item.name in runs.c and item.name not in ("request", "cost_usd")]
_COUNTS = [item.name for item in fields(Usage) if item.name != "cost_usd"]
_ADD_ENTRY = insert(journal)
_LAST_KIND = (
    select(journal.c.kind).where(journal.c.run == runs.c.id).order_by(journal.c.seq.desc()).limit(1).scalar_subquery()
)


def add_run(connection: Connection, **columns: Any) -> None:
    connection.execute(_ADD_RUN, columns)


def change_run(connection: Connection, run_id: str, **columns: Any) -> None:
    connection.execute(_CHANGE_RUN, {"which": run_id, **columns})


def find_run(connection: Connection, run_id: str) -> Run | None:
    row = connection.execute(_FIND_RUN, {"which": run_id}).mappings().first()
    return _to_run(row) if row else None


def list_runs(connection: Connection, limit: int | None = None, *, children: bool = False) -> list[Run]:
    """Return the runs, newest first. Child runs are included only if `children` is set."""
    query = _RUNS.order_by(runs.c.created_at.desc(), runs.c.id).limit(limit)
    if not children:
        query = query.where(runs.c.parent.is_(None))
    return [_to_run(row) for row in connection.execute(query).mappings()]


def mark_interrupted(connection: Connection, boot: str) -> Sequence[str]:
    """Mark the running runs of earlier halls as interrupted, and return their ids.

    Cancel a plain run that a hall itself created, such as a compaction, because the next hall creates another.
    A conversation that waited for the user still waits.
    """
    orphans = (runs.c.status == "running") & ((runs.c.owner != boot) | (runs.c.owner.is_(None)))
    still_waiting = update(runs).where(orphans, _LAST_KIND == "listening")
    connection.execute(still_waiting.values(**_pause_columns(SegmentEnd.waiting("message"))))
    ids = connection.execute(select(runs.c.id).where(orphans)).scalars().all()
    _count_crashes(connection, ids)
    columns = {"reason": "its process died", "status": "interrupted", "pause": None}
    connection.execute(update(runs).where(runs.c.id.in_(ids)).values(**columns))
    by_hall = (runs.c.request["frame"]["caller"].as_string() == HALL) & (runs.c.kind == "plain")
    connection.execute(update(runs).where(runs.c.id.in_(ids), by_hall).values(status="cancelled"))
    return ids


def _count_crashes(connection: Connection, ids: Sequence[str]) -> None:
    """Count one more crash of each run. Start again at 1 if the run has made progress since it was resumed."""
    for run_id in ids:
        resumed = select(func.max(journal.c.at)).where(journal.c.run == run_id, journal.c.kind == "resumed")
        since = connection.execute(resumed).scalar_one()
        tree = journal.c.run.in_(select(runs.c.id).where(runs.c.root == run_id))
        progress = select(journal.c.seq).where(tree, journal.c.kind.in_(_PROGRESS), journal.c.at > (since or ""))
        has_progress = since is not None and connection.execute(progress.limit(1)).first() is not None
        crashes = 1 if has_progress else runs.c.crashes + 1
        connection.execute(update(runs).where(runs.c.id == run_id).values(crashes=crashes))


def list_resumable(connection: Connection) -> list[tuple[Run, int]]:
    """Return the root runs that a hall resumes when it starts, oldest first, with the number of their crashes."""
    resumable = (runs.c.status == "interrupted") | ((runs.c.status == "paused") & (runs.c.pause == "shutdown"))
    query = _RUNS.where(resumable, runs.c.parent.is_(None)).order_by(_ROWID)
    return [(_to_run(row), row["crashes"]) for row in connection.execute(query).mappings()]


def list_unfinished(connection: Connection) -> list[tuple[str, str, Mapping[str, Any] | None]]:
    """Return the id, the worker and the recorded assembly of each run that has not ended."""
    first = (journal.c.run == runs.c.id) & (journal.c.kind == "assembled")
    rows = select(runs.c.id, runs.c.worker, journal.c.data).select_from(runs.outerjoin(journal, first))
    return [tuple(row) for row in connection.execute(rows.where(runs.c.status.not_in(ENDED)))]


def fail_run(connection: Connection, run_id: str, error: ErrorInfo, now: str) -> None:
    """Fail a run that no process executes. Its child runs stay as they are, because the user may resume it."""
    withdraw_asks(connection, run_id, now, questions=False)
    _end(connection, run_id, Ended(status="failed", reason=error["code"], error=error, output=None), now)


def complete_run(connection: Connection, run_id: str, output: Any, now: str) -> None:
    """Complete a stopped run whose result exists, and cancel its child runs."""
    _cancel_each(connection, _unfinished_descendants(connection, run_id), now)
    withdraw_asks(connection, run_id, now, questions=False)
    unjudged = Unjudged(status="cancelled")
    _end(connection, run_id, Ended(status="completed", reason=None, error=None, output=output, unjudged=unjudged), now)


def cancel_with_child_runs(connection: Connection, run_id: str, now: str) -> list[str]:
    """Cancel a run and its unfinished child runs, withdraw their asks, and return their ids, the run's first."""
    ids = [run_id, *_unfinished_descendants(connection, run_id)]
    withdraw_asks(connection, run_id, now)
    _cancel_each(connection, ids, now)
    return ids


def _cancel_each(connection: Connection, ids: Sequence[str], now: str) -> None:
    for run_id in ids:
        _end(connection, run_id, Ended(status="cancelled", reason="by the user", error=None, output=None), now)


def _unfinished_descendants(connection: Connection, run_id: str) -> Sequence[str]:
    unfinished = runs.c.id.in_(select(_descendant_ids(run_id))) & runs.c.status.not_in(ENDED)
    return connection.execute(select(runs.c.id).where(unfinished).order_by(_ROWID)).scalars().all()


def _end(connection: Connection, run_id: str, end: Ended, now: str) -> None:
    """End a run that no process executes, and append the end to its journal."""
    columns: dict[str, Any] = {"status": end.status, "reason": end.reason}
    if end.status != "cancelled":  # a run that failed before keeps its error
        columns |= {"error": end.error, "output": end.output}
    change_run(connection, run_id, **columns, pause=None, owner=None, ended_at=now)
    last = connection.execute(select(func.max(journal.c.seq)).where(journal.c.run == run_id)).scalar_one()
    add_entry(connection, Entry(run=run_id, seq=last + 1, key=None, data=end, at=now))


def pause_descendants(connection: Connection, run_id: str) -> None:
    """Pause the child runs that were created but not started when the run stopped."""
    created = runs.c.id.in_(select(_descendant_ids(run_id))) & (runs.c.status == "running")
    connection.execute(update(runs).where(created).values(**_pause_columns(SegmentEnd.paused("cut_off"))))


def _pause_columns(end: SegmentEnd) -> dict[str, Any]:
    return {"status": end.status, "pause": end.pause, "reason": end.reason, "owner": None}


def running_seconds(connection: Connection, run_id: str) -> float:
    return connection.execute(select(runs.c.running_seconds).where(runs.c.id == run_id)).scalar_one()


def count_worker_runs(connection: Connection, root: str, worker: str) -> int:
    """Return the number of runs of a worker with this root run. The run of a workflow does not count."""
    return connection.execute(_RUNS_OF_WORKER, {"top": root, "whose": worker}).scalar_one()


def find_call_run(connection: Connection, parent: str, call: str) -> Run | None:
    row = connection.execute(_RUN_OF_CALL, {"by": parent, "call": call}).mappings().first()
    return _to_run(row) if row else None


def list_descendants(connection: Connection, run_id: str) -> list[Run]:
    """Return the child runs of a run, their child runs and so on, in the order of creation."""
    query = _RUNS.where(runs.c.id.in_(select(_descendant_ids(run_id)))).order_by(_ROWID)
    return [_to_run(row) for row in connection.execute(query).mappings()]


def _descendant_ids(run_id: str) -> CTE:
    found = select(runs.c.id).where(runs.c.parent == run_id).cte(recursive=True)
    return found.union(select(runs.c.id).join(found, runs.c.parent == found.c.id))


def _to_run(row: RowMapping) -> Run:
    return Run(
        **{name: row[name] for name in _FIELDS},
        request=request_from_record(row["request"]),
        frame=RecordedFrame.from_record(row["request"]["frame"]),
        forked_from=ForkOrigin(**origin) if (origin := row["request"].get("forked_from")) else None,
        usage=Usage(**{name: row[name] for name in _COUNTS}, cost_usd=_round(row["cost_usd"])),
        cost_usd=_round(row["cost_usd"] if row["parent"] else row["tree_cost_usd"]),
    )


def _round(dollars: float | None) -> float | None:
    return None if dollars is None else round(dollars, 9)  # sums of floats have rounding errors


# journal


def add_entry(connection: Connection, entry: Entry[Payload]) -> None:
    connection.execute(_ADD_ENTRY, entry.as_dict())


def list_entries(connection: Connection, run_id: str, after: int = -1) -> list[Entry[Payload]]:
    query = select(journal).where(journal.c.run == run_id, journal.c.seq > after).order_by(journal.c.seq)
    return [Entry.from_dict(cast("Mapping[str, Any]", row)) for row in connection.execute(query).mappings()]


# asks


_ASKS = select(*(asks.c[item.name] for item in fields(Ask)))


def add_ask(connection: Connection, ask: Ask) -> None:
    connection.execute(insert(asks).values(asdict(ask)))


def change_ask(connection: Connection, ask: str, expected: str, **columns: Any) -> bool:
    """Change an ask that has the expected status. Return False if it has another status."""
    result = connection.execute(update(asks).where(asks.c.id == ask, asks.c.status == expected).values(**columns))
    return result.rowcount == 1


def withdraw_asks(connection: Connection, run_id: str, now: str, *, questions: bool = True) -> None:
    """Withdraw the open asks of a run that has ended, and of its child runs.

    Conflicts and meetings outlive the run, and so do its questions unless `questions` is set.
    """
    remaining = OUTLIVING_KINDS - {"question"} if questions else OUTLIVING_KINDS
    _withdraw(connection, _of_tree(run_id) & asks.c.kind.not_in(sorted(remaining)), now)


def withdraw_kind(connection: Connection, run_id: str, kind: AskKind, now: str) -> None:
    """Withdraw the open asks of one kind of a run, because they are no longer needed."""
    _withdraw(connection, (asks.c.run == run_id) & (asks.c.kind == kind), now)


def withdraw_limit_asks(connection: Connection, run_id: str, now: str) -> None:
    """Withdraw the open asks about limits of a run and of its child runs, because a grant has replaced the limits."""
    _withdraw(connection, _of_tree(run_id) & (asks.c.kind == "limit"), now)


def _withdraw(connection: Connection, which: ColumnElement[bool], now: str) -> None:
    still_open = which & (asks.c.status == "open")
    connection.execute(update(asks).where(still_open).values(status="withdrawn", closed_at=now))


def _of_tree(run_id: str) -> ColumnElement[bool]:
    """Select the asks of a run and of its child runs."""
    return (asks.c.run == run_id) | asks.c.run.in_(select(_descendant_ids(run_id)))


def list_runs_with_cut_off_calls(connection: Connection, run_id: str) -> list[str]:
    """Return the ids, among a run and its descendants, of runs that have model calls without a response or failure."""
    asked = func.sum(journal.c.kind == "model_asked")
    ended = func.sum(journal.c.kind.in_(("model_answered", "model_failed")))
    in_tree = (journal.c.run == run_id) | journal.c.run.in_(select(_descendant_ids(run_id)))
    query = select(journal.c.run).where(in_tree).group_by(journal.c.run).having(asked > ended)
    return list(connection.execute(query).scalars())


def find_ask(connection: Connection, ask: str) -> Ask | None:
    row = connection.execute(_ASKS.where(asks.c.id == ask)).mappings().first()
    return _to_ask(row) if row else None


def find_latest_ask(connection: Connection, run_id: str, key: str, subject: str) -> Ask | None:
    """Return the newest ask of a call about this subject, or None."""
    query = _ASKS.where(asks.c.run == run_id, asks.c.key == key, asks.c.subject == subject)
    row = connection.execute(query.order_by(asks.c.created_at.desc()).limit(1)).mappings().first()
    return _to_ask(row) if row else None


def find_standing_approval(connection: Connection, root: str, subject: str) -> Ask | None:
    """Return an approval of this subject that is valid for all runs of a root run, or None."""
    approvals = _ASKS.where(asks.c.root == root, asks.c.subject == subject, asks.c.kind == "approval")
    answered = connection.execute(approvals.where(asks.c.status.in_(["answered", "applied"]))).mappings()
    return next((ask for ask in map(_to_ask, answered) if ask.outcome == "always"), None)


def list_asks(connection: Connection, *, run_id: str | None = None, status: str | None = None) -> list[Ask]:
    """Return the asks, oldest first. `run` selects the asks of a run and of its child runs."""
    query = _ASKS.order_by(literal_column("asks.rowid"))  # creation times may be equal
    if run_id is not None:
        query = query.where(_of_tree(run_id))
    if status is not None:
        query = query.where(asks.c.status == status)
    return [_to_ask(row) for row in connection.execute(query).mappings()]


def _to_ask(row: RowMapping) -> Ask:
    question: dict[str, Any] = {**row["question"], "choices": tuple(row["question"]["choices"])}
    answer = Answer(**row["answer"]) if row["answer"] else None
    columns: dict[str, Any] = {**row, "question": Question(**question), "answer": answer}
    return Ask(**columns)
