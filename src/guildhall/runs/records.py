"""The SQL of runs, journals and asks. Nothing else in the package knows their columns."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, RowMapping, func, insert, select, update

from guildhall.runs.model import HALL, Answer, Ask, Entry, Question, Run, RunStatus, Usage
from guildhall.store.tables import asks, journal, runs

if TYPE_CHECKING:
    from collections.abc import Sequence

# runs


def add_run(connection: Connection, **columns: Any) -> None:
    connection.execute(insert(runs).values(**columns))


def change_run(connection: Connection, run: str, **columns: Any) -> None:
    connection.execute(update(runs).where(runs.c.id == run).values(**columns))


def find_run(connection: Connection, run: str) -> Run | None:
    row = connection.execute(select(runs).where(runs.c.id == run)).mappings().first()
    return _run(row) if row else None


def list_runs(connection: Connection, limit: int | None = None) -> list[Run]:
    """The runs, newest first."""
    query = select(runs).order_by(runs.c.created_at.desc(), runs.c.id).limit(limit)
    return [_run(row) for row in connection.execute(query).mappings()]


def tree(connection: Connection, root: str) -> list[Run]:
    """All runs of a tree: worker by worker, those of a worker in the order in which they were made."""
    query = select(runs).where(runs.c.root == root).order_by(runs.c.worker, runs.c.ordinal, runs.c.created_at)
    return [_run(row) for row in connection.execute(query).mappings()]


def mark_lost(connection: Connection, boot: str) -> Sequence[str]:
    """Every run that another hall was running is lost: that hall is gone. Gives their ids.

    One that the hall had made by itself is over: nobody is to go on with it.
    """
    orphans = (runs.c.status == "running") & ((runs.c.owner != boot) | (runs.c.owner.is_(None)))
    ids = connection.execute(select(runs.c.id).where(orphans)).scalars().all()
    gone = {"reason": "the process that ran it is gone", "status": "lost"}
    connection.execute(update(runs).where(runs.c.id.in_(ids)).values(**gone))
    by_hall = runs.c.request["frame"]["caller"].as_string() == HALL
    connection.execute(update(runs).where(runs.c.id.in_(ids), by_hall).values(status="cancelled"))
    return ids


def cancel(connection: Connection, run: str, now: str) -> None:
    change_run(connection, run, status="cancelled", reason="cut off", ended_at=now)


def running_seconds(connection: Connection, run: str) -> float:
    return connection.execute(select(runs.c.running_seconds).where(runs.c.id == run)).scalar_one()


def earlier_runs(connection: Connection, root: str, worker: str, run: str) -> int:
    """How many runs of the same worker its tree had before this one."""
    mine = select(runs.c.created_at).where(runs.c.id == run).scalar_subquery()
    query = select(func.count()).where(
        runs.c.root == root, runs.c.worker == worker, runs.c.id != run, runs.c.created_at <= mine
    )
    return connection.execute(query).scalar_one()


def _run(row: RowMapping) -> Run:
    status: RunStatus = row["status"]
    return Run(
        id=row["id"],
        root=row["root"],
        parent=row["parent"],
        worker=row["worker"],
        model=row["model"],
        status=status,
        reason=row["reason"],
        request=row["request"],
        error=row["error"],
        output=row["output"],
        created_at=row["created_at"],
        ended_at=row["ended_at"],
        usage=Usage(
            turns=row["turns"],
            input_tokens=row["input_tokens"],
            output_tokens=row["output_tokens"],
            cost_usd=row["cost_usd"],
        ),
    )


# journal


def add_entry(connection: Connection, entry: Entry) -> None:
    connection.execute(insert(journal).values(**asdict(entry)))


def entries(connection: Connection, run: str, after: int = -1) -> list[Entry]:
    query = select(journal).where(journal.c.run == run, journal.c.seq > after).order_by(journal.c.seq)
    return [Entry(**row) for row in connection.execute(query).mappings()]


# asks


def add_ask(connection: Connection, ask: Ask, root: str) -> None:
    connection.execute(
        insert(asks).values(
            id=ask.id,
            run=ask.run,
            root=root,
            kind=ask.kind,
            key=ask.key,
            subject=ask.subject,
            question=asdict(ask.question),
            status=ask.status,
            created_at=ask.created_at,
            expires_at=ask.expires_at,
        )
    )


def change_ask(connection: Connection, ask: str, expected: str, **columns: Any) -> bool:
    """Changes an ask if it is in the expected state; says whether it was."""
    result = connection.execute(update(asks).where(asks.c.id == ask, asks.c.status == expected).values(**columns))
    return result.rowcount == 1


def withdraw_asks(connection: Connection, run: str, now: str) -> None:
    """Closes what a run still asks, because it has ended."""
    still_open = (asks.c.run == run) & (asks.c.status == "open")
    connection.execute(update(asks).where(still_open).values(status="withdrawn", closed_at=now))


def find_ask(connection: Connection, ask: str) -> Ask | None:
    row = connection.execute(select(asks).where(asks.c.id == ask)).mappings().first()
    return _ask(row) if row else None


def ask_of_call(connection: Connection, run: str, key: str, subject: str) -> Ask | None:
    """The newest ask about exactly this of this call."""
    query = (
        select(asks)
        .where(asks.c.run == run, asks.c.key == key, asks.c.subject == subject)
        .order_by(asks.c.created_at.desc())
        .limit(1)
    )
    row = connection.execute(query).mappings().first()
    return _ask(row) if row else None


def session_approval(connection: Connection, root: str, subject: str) -> Ask | None:
    """An approval of exactly this that was given for the whole tree of runs."""
    query = select(asks).where(
        asks.c.root == root,
        asks.c.subject == subject,
        asks.c.kind == "approval",
        asks.c.status.in_(["answered", "applied"]),
    )
    for row in connection.execute(query).mappings():
        ask = _ask(row)
        if ask.answer and ask.answer.choice == "session":
            return ask
    return None


def list_asks(connection: Connection, *, run: str | None = None, status: str | None = None) -> list[Ask]:
    query = select(asks).order_by(asks.c.created_at, asks.c.id)
    if run is not None:
        query = query.where(asks.c.run == run)
    if status is not None:
        query = query.where(asks.c.status == status)
    return [_ask(row) for row in connection.execute(query).mappings()]


def _ask(row: RowMapping) -> Ask:
    question: dict[str, Any] = row["question"]
    answer: dict[str, Any] | None = row["answer"]
    return Ask(
        id=row["id"],
        run=row["run"],
        kind=row["kind"],
        key=row["key"],
        subject=row["subject"],
        question=Question(title=question["title"], body=question["body"], choices=tuple(question["choices"])),
        status=row["status"],
        answer=Answer(**answer) if answer else None,
        created_at=row["created_at"],
        expires_at=row["expires_at"],
        closed_at=row["closed_at"],
    )
