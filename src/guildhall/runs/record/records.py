"""SQL of runs, journals and asks: adds, changes and queries the rows, and ends runs that no process executes.

Does not execute runs: `runs.execution` does.

Invariant: no other module of the package accesses these tables.
"""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any, cast

from sqlalchemy import (
    CTE,
    ColumnElement,
    Connection,
    Integer,
    RowMapping,
    bindparam,
    func,
    insert,
    literal_column,
    select,
    update,
)

from guildhall.core.frame import RecordedFrame
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
    from collections.abc import Mapping, Sequence

    from guildhall.core.errors import ErrorInfo

# runs

_PLACE = literal_column("runs.rowid", Integer)  # the order in which rows were made
_PROGRESS = ("model_answered", "tool_ended", "worker_created", "said")  # what a run need not do again
_other = runs.alias()
_TREE_COST = select(func.sum(_other.c.cost_usd)).where(_other.c.root == runs.c.id).scalar_subquery()
_RUNS = select(runs, _TREE_COST.label("tree_cost_usd"))
# What is needed all the time is put together once: making a statement costs more than executing it.
_ADD_RUN = insert(runs)
_CHANGE_RUN = update(runs).where(runs.c.id == bindparam("which"))
_FIND_RUN = _RUNS.where(runs.c.id == bindparam("which"))
_RUN_OF_CALL = _RUNS.where(runs.c.parent == bindparam("by"), runs.c.parent_call == bindparam("call"))
_RUNS_OF_WORKER = select(func.count()).where(
    runs.c.root == bindparam("top"), runs.c.worker == bindparam("whose"), runs.c.kind != "workflow"
)
# Columns that have the name and the value of a field of Run.
_FIELDS = [one.name for one in fields(Run) if one.name in runs.c and one.name not in ("request", "cost_usd")]
_COUNTS = ("turns", "input_tokens", "output_tokens")
_ADD_ENTRY = insert(journal)
_LAST_KIND = (
    select(journal.c.kind).where(journal.c.run == runs.c.id).order_by(journal.c.seq.desc()).limit(1).scalar_subquery()
)


def add_run(connection: Connection, **columns: Any) -> None:
    connection.execute(_ADD_RUN, columns)


def change_run(connection: Connection, run: str, **columns: Any) -> None:
    connection.execute(_CHANGE_RUN, {"which": run, **columns})


def find_run(connection: Connection, run: str) -> Run | None:
    row = connection.execute(_FIND_RUN, {"which": run}).mappings().first()
    return _run(row) if row else None


def list_runs(connection: Connection, limit: int | None = None, *, called: bool = False) -> list[Run]:
    """The runs, newest first; with those that another one has `called` only if they are wanted."""
    query = _RUNS.order_by(runs.c.created_at.desc(), runs.c.id).limit(limit)
    if not called:
        query = query.where(runs.c.parent.is_(None))
    return [_run(row) for row in connection.execute(query).mappings()]


def mark_interrupted(connection: Connection, boot: str) -> Sequence[str]:
    """Mark the runs of a hall that is gone as lost, and return their ids.

    A run that the hall itself created is cancelled. A conversation that waited for the user still waits.
    """
    orphans = (runs.c.status == "running") & ((runs.c.owner != boot) | (runs.c.owner.is_(None)))
    still_waiting = update(runs).where(orphans, _LAST_KIND == "listening")
    connection.execute(still_waiting.values(**_pause_columns(SegmentEnd.waiting("message"))))
    ids = connection.execute(select(runs.c.id).where(orphans)).scalars().all()
    _count_crashes(connection, ids)
    gone = {"reason": "the process that ran it is gone", "status": "interrupted", "pause": None}
    connection.execute(update(runs).where(runs.c.id.in_(ids)).values(**gone))
    by_hall = runs.c.request["frame"]["caller"].as_string() == HALL
    connection.execute(update(runs).where(runs.c.id.in_(ids), by_hall).values(status="cancelled"))
    return ids


def _count_crashes(connection: Connection, ids: Sequence[str]) -> None:
    """One more for each run whose process is gone. A tree that got further since it was last resumed begins anew."""
    for run in ids:
        resumed = select(func.max(journal.c.at)).where(journal.c.run == run, journal.c.kind == "resumed")
        since = connection.execute(resumed).scalar_one()
        tree = journal.c.run.in_(select(runs.c.id).where(runs.c.root == run))
        further = select(journal.c.seq).where(tree, journal.c.kind.in_(_PROGRESS), journal.c.at > (since or ""))
        anew = since is not None and connection.execute(further.limit(1)).first() is not None
        connection.execute(update(runs).where(runs.c.id == run).values(crashes=1 if anew else runs.c.crashes + 1))


def list_resumable(connection: Connection) -> list[tuple[Run, int]]:
    """The runs that a hall which is gone had not paused for a person, oldest first, and how often they were lost."""
    by_itself = (runs.c.status == "interrupted") | ((runs.c.status == "paused") & (runs.c.pause == "shutdown"))
    query = _RUNS.where(by_itself, runs.c.parent.is_(None)).order_by(_PLACE)
    return [(_run(row), row["crashes"]) for row in connection.execute(query).mappings()]


def list_unfinished(connection: Connection) -> list[tuple[str, str, Mapping[str, Any] | None]]:
    """Every run that is not over: its id, its worker's name, and what it began with, if it has."""
    first = (journal.c.run == runs.c.id) & (journal.c.kind == "assembled")
    rows = select(runs.c.id, runs.c.worker, journal.c.data).select_from(runs.outerjoin(journal, first))
    return [tuple(row) for row in connection.execute(rows.where(runs.c.status.not_in(ENDED)))]


def fail_run(connection: Connection, run: str, error: ErrorInfo, now: str) -> None:
    """Fails a run that has been lost too often. What it has called stays as it is, for a person who resumes it."""
    withdraw_asks(connection, run, now, questions=False)
    end = Ended(status="failed", reason=error["code"], error=error, output=None)
    _end(connection, run, end, now)


def complete_run(connection: Connection, run: str, output: Any, now: str) -> None:
    """Completes a run that was stopped for good, because what it was to give is there. What it called is over."""
    _cancel_each(connection, _unfinished_below(connection, run), now)
    withdraw_asks(connection, run, now, questions=False)
    by_itself = Unjudged(status="cancelled")
    end = Ended(status="completed", reason=None, error=None, output=output, unjudged=by_itself)
    _end(connection, run, end, now)


def cancel(connection: Connection, run: str, now: str) -> None:
    change_run(connection, run, status="cancelled", pause=None, reason="cut off", ended_at=now)


def cancel_tree(connection: Connection, run: str, now: str) -> list[str]:
    """Ends a run and all below it that have not ended, closes what they ask, and gives their ids, the run's first."""
    ids = [run, *_unfinished_below(connection, run)]
    withdraw_asks(connection, run, now)
    _cancel_each(connection, ids, now)
    return ids


def _cancel_each(connection: Connection, ids: Sequence[str], now: str) -> None:
    for one in ids:
        _end(connection, one, Ended(status="cancelled", reason="by the user", error=None, output=None), now)


def _unfinished_below(connection: Connection, run: str) -> Sequence[str]:
    below = runs.c.id.in_(select(_ids_below(run))) & runs.c.status.not_in(ENDED)
    return connection.execute(select(runs.c.id).where(below).order_by(_PLACE)).scalars().all()


def _end(connection: Connection, run: str, end: Ended, now: str) -> None:
    """End a run that nobody executes, and append the end to its journal."""
    columns: dict[str, Any] = {"status": end.status, "reason": end.reason}
    if end.status != "cancelled":  # a run that failed before keeps its error
        columns |= {"error": end.error, "output": end.output}
    change_run(connection, run, **columns, pause=None, owner=None, ended_at=now)
    last = connection.execute(select(func.max(journal.c.seq)).where(journal.c.run == run)).scalar_one()
    add_entry(connection, Entry(run=run, seq=last + 1, key=None, data=end, at=now))


def pause_children(connection: Connection, run: str) -> None:
    """Puts away what a run has called and that had not begun to work yet when the run stopped."""
    unbegun = runs.c.id.in_(select(_ids_below(run))) & (runs.c.status == "running")
    connection.execute(update(runs).where(unbegun).values(**_pause_columns(SegmentEnd.paused("cut_off"))))


def _pause_columns(end: SegmentEnd) -> dict[str, Any]:
    return {"status": end.status, "pause": end.pause, "reason": end.reason, "owner": None}


def running_seconds(connection: Connection, run: str) -> float:
    return connection.execute(select(runs.c.running_seconds).where(runs.c.id == run)).scalar_one()


def count_worker_runs(connection: Connection, root: str, worker: str) -> int:
    """How many runs of a worker a tree has. A workflow's own run is none, though an agent may be named alike."""
    return connection.execute(_RUNS_OF_WORKER, {"top": root, "whose": worker}).scalar_one()


def find_call_run(connection: Connection, parent: str, call: str) -> Run | None:
    row = connection.execute(_RUN_OF_CALL, {"by": parent, "call": call}).mappings().first()
    return _run(row) if row else None


def below(connection: Connection, run: str) -> list[Run]:
    query = _RUNS.where(runs.c.id.in_(select(_ids_below(run)))).order_by(_PLACE)
    return [_run(row) for row in connection.execute(query).mappings()]


def _ids_below(run: str) -> CTE:
    top = select(runs.c.id).where(runs.c.parent == run).cte(recursive=True)
    return top.union(select(runs.c.id).join(top, runs.c.parent == top.c.id))


def _run(row: RowMapping) -> Run:
    return Run(
        **{name: row[name] for name in _FIELDS},
        request=request_from_record(row["request"]),
        frame=RecordedFrame.from_record(row["request"]["frame"]),
        forked_from=ForkOrigin(**origin) if (origin := row["request"].get("forked_from")) else None,
        usage=Usage(**{name: row[name] for name in _COUNTS}, cost_usd=_rounded(row["cost_usd"])),
        cost_usd=_rounded(row["cost_usd"] if row["parent"] else row["tree_cost_usd"]),
    )


def _rounded(dollars: float | None) -> float | None:
    return None if dollars is None else round(dollars, 9)  # without the dust of adding


# journal


def add_entry(connection: Connection, entry: Entry[Payload]) -> None:
    connection.execute(_ADD_ENTRY, entry.as_dict())


def entries(connection: Connection, run: str, after: int = -1) -> list[Entry[Payload]]:
    query = select(journal).where(journal.c.run == run, journal.c.seq > after).order_by(journal.c.seq)
    return [Entry.from_dict(cast("Mapping[str, Any]", row)) for row in connection.execute(query).mappings()]


# asks


_ASKS = select(*(asks.c[one.name] for one in fields(Ask)))


def add_ask(connection: Connection, ask: Ask) -> None:
    connection.execute(insert(asks).values(asdict(ask)))


def change_ask(connection: Connection, ask: str, expected: str, **columns: Any) -> bool:
    """Changes an ask if it is in the expected state; says whether it was."""
    result = connection.execute(update(asks).where(asks.c.id == ask, asks.c.status == expected).values(**columns))
    return result.rowcount == 1


def withdraw_asks(connection: Connection, run: str, now: str, *, questions: bool = True) -> None:
    """Withdraw the open asks of a run that has ended, and of the runs below it.

    Conflicts and meetings outlive the run, and so do its questions unless `questions` is set.
    """
    staying = OUTLIVING_KINDS - {"question"} if questions else OUTLIVING_KINDS
    _withdraw(connection, _of_tree(run) & asks.c.kind.not_in(sorted(staying)), now)


def withdraw_kind(connection: Connection, run: str, kind: AskKind, now: str) -> None:
    """Closes what a run asks of one kind, because what it is about is settled otherwise."""
    _withdraw(connection, (asks.c.run == run) & (asks.c.kind == kind), now)


def _withdraw(connection: Connection, which: ColumnElement[bool], now: str) -> None:
    still_open = which & (asks.c.status == "open")
    connection.execute(update(asks).where(still_open).values(status="withdrawn", closed_at=now))


def _of_tree(run: str) -> ColumnElement[bool]:
    """Select the asks of a run and of the runs below it."""
    return (asks.c.run == run) | asks.c.run.in_(select(_ids_below(run)))


def find_ask(connection: Connection, ask: str) -> Ask | None:
    row = connection.execute(_ASKS.where(asks.c.id == ask)).mappings().first()
    return _ask(row) if row else None


def find_latest_ask(connection: Connection, run: str, key: str, subject: str) -> Ask | None:
    """The newest ask about exactly this of this call."""
    query = _ASKS.where(asks.c.run == run, asks.c.key == key, asks.c.subject == subject)
    row = connection.execute(query.order_by(asks.c.created_at.desc()).limit(1)).mappings().first()
    return _ask(row) if row else None


def find_standing_approval(connection: Connection, root: str, subject: str) -> Ask | None:
    """An approval of exactly this that was given for the whole tree of runs."""
    approvals = _ASKS.where(asks.c.root == root, asks.c.subject == subject, asks.c.kind == "approval")
    answered = connection.execute(approvals.where(asks.c.status.in_(["answered", "applied"]))).mappings()
    return next((ask for ask in map(_ask, answered) if ask.outcome == "always"), None)


def list_asks(connection: Connection, *, run: str | None = None, status: str | None = None) -> list[Ask]:
    """The asks, oldest first; of one run, those that it has called included."""
    query = _ASKS.order_by(literal_column("asks.rowid"))  # two of one moment stay in their order
    if run is not None:
        query = query.where(_of_tree(run))
    if status is not None:
        query = query.where(asks.c.status == status)
    return [_ask(row) for row in connection.execute(query).mappings()]


def _ask(row: RowMapping) -> Ask:
    question: dict[str, Any] = {**row["question"], "choices": tuple(row["question"]["choices"])}
    answer = Answer(**row["answer"]) if row["answer"] else None
    columns: dict[str, Any] = {**row, "question": Question(**question), "answer": answer}
    return Ask(**columns)
