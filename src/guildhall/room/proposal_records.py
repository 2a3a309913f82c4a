"""The SQL of proposals and votes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import func, insert, literal_column, select, update

from guildhall.room.model import Proposal, Vote
from guildhall.store.room_tables import proposals, votes

if TYPE_CHECKING:
    from sqlalchemy import Connection, RowMapping

    from guildhall.room.model import Actor

_OPEN = proposals.c.status == literal_column("'open'")  # spelled out: only so is the partial index used
_LISTS = ("options", "guards", "eligible")


def add(connection: Connection, room: str, proposal: Proposal) -> None:
    values = {column.name: getattr(proposal, column.name) for column in proposals.c if column.name != "room"}
    values |= {name: list(values[name]) for name in _LISTS}
    connection.execute(insert(proposals).values(room=room, **values))


def count(connection: Connection, room: str) -> int:
    return connection.execute(select(func.count()).where(proposals.c.room == room)).scalar_one()


def find(connection: Connection, room: str, number: int) -> Proposal | None:
    statement = select(proposals).where(proposals.c.room == room, proposals.c.number == number)
    row = connection.execute(statement).mappings().first()
    return None if row is None else _proposal(row)


def all_of(connection: Connection, room: str) -> list[Proposal]:
    """Every proposal, oldest first."""
    statement = select(proposals).where(proposals.c.room == room).order_by(proposals.c.number)
    return [_proposal(row) for row in connection.execute(statement).mappings()]


def open_ones(connection: Connection, room: str) -> list[Proposal]:
    statement = select(proposals).where(proposals.c.room == room, _OPEN).order_by(proposals.c.number)
    return [_proposal(row) for row in connection.execute(statement).mappings()]


def unarchived(connection: Connection, room: str) -> list[Proposal]:
    """Those that have a result which the archive does not have yet."""
    mine = (proposals.c.room == room) & proposals.c.result.is_not(None) & proposals.c.archived.is_(False)
    statement = select(proposals).where(mine).order_by(proposals.c.ended_at, proposals.c.number)
    return [_proposal(row) for row in connection.execute(statement).mappings()]


def change(connection: Connection, room: str, number: int, **values: Any) -> None:
    mine = (proposals.c.room == room) & (proposals.c.number == number)
    connection.execute(update(proposals).where(mine).values(**values))


def put_vote(
    connection: Connection, room: str, number: int, choice: str, reason: str | None, actor: Actor, at: str
) -> None:
    mine = (votes.c.room == room) & (votes.c.proposal == number) & (votes.c.agent == actor.name)
    values = {"choice": choice, "reason": reason, "run": actor.run, "at": at}
    if connection.execute(update(votes).where(mine).values(**values)).rowcount == 0:
        connection.execute(insert(votes).values(room=room, proposal=number, agent=actor.name, **values))


def votes_of(connection: Connection, room: str, number: int) -> list[Vote]:
    """In the order of the voters' names."""
    mine = (votes.c.room == room) & (votes.c.proposal == number)
    found = connection.execute(select(votes).where(mine).order_by(votes.c.agent))
    return [Vote(agent=row.agent, choice=row.choice, reason=row.reason) for row in found]


def _proposal(row: RowMapping) -> Proposal:
    values: dict[str, Any] = {name: value for name, value in row.items() if name != "room"}
    values |= {name: tuple(values[name]) for name in _LISTS}
    return Proposal(**values)
