"""Queries for rooms, agents, messages, deliveries, proposals, votes and the log.

Queries for documents and resources are in `document_records.py`.

Invariant: messages and log entries are added and never removed.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, bindparam, delete, func, insert, literal_column, select, update

from guildhall.room.model import (
    HOLDING,
    PERSON,
    SYSTEM,
    Actor,
    DeliveryStatus,
    LogEntry,
    Mail,
    Message,
    Proposal,
    RoomAgent,
    RoomRecord,
    ShownInbox,
    Vote,
)
from guildhall.store.tables import deliveries, messages, proposals, room_log, rooms, seats, votes

# Literals, because SQLite does not use a partial index for a parameter.
_UNREAD = deliveries.c.status == literal_column("'unread'")
_OPEN = proposals.c.status == literal_column("'open'")
_IS_RECIPIENT = (deliveries.c.room == seats.c.room) & (deliveries.c.agent == seats.c.agent)
_SHOWS_INBOX: ColumnElement[bool] = literal_column("op IN ('inbox_shown', 'inbox_read')")

# Statements of every tool call are built once, because building one costs more than executing it.
_ROOM = select(rooms).where(rooms.c.id == bindparam("id"))
_AGENTS = select(seats).where(seats.c.room == bindparam("room")).order_by(seats.c.ordinal)
_LAST_NUMBER = select(func.max(messages.c.id)).where(messages.c.room == bindparam("room"))
_ADD_MESSAGE = insert(messages)
_DELIVER = insert(deliveries)
_LOG = insert(room_log)
_RECORDED = select(room_log.c.op, room_log.c.result).where(
    room_log.c.room == bindparam("room"), room_log.c.run == bindparam("run"), room_log.c.key == bindparam("key")
)
_SEEN = select(
    func.max(room_log.c.result["until"].as_integer()), func.max(room_log.c.result["hops"].as_integer())
).where(room_log.c.room == bindparam("room"), room_log.c.run == bindparam("run"), _SHOWS_INBOX)
_INBOX = (
    select(messages, deliveries.c.priority)
    .select_from(
        deliveries.join(messages, (messages.c.room == deliveries.c.room) & (messages.c.id == deliveries.c.message))
    )
    .order_by(deliveries.c.message)
)
_READ_INBOX = _INBOX.where(
    deliveries.c.room == bindparam("room"), deliveries.c.agent == bindparam("agent"), _UNREAD
).limit(bindparam("limit"))


@contextmanager
def savepoint(connection: Connection) -> Generator[None]:
    """Roll back the statements of a block that raises, and keep the transaction around it."""
    raw: Any = connection.connection.dbapi_connection
    raw.execute("SAVEPOINT operation")
    try:
        yield
    except BaseException:
        if raw.in_transaction:  # SQLite may have rolled back all of it
            raw.execute("ROLLBACK TO operation")
            raw.execute("RELEASE operation")
        raise
    raw.execute("RELEASE operation")


# Rooms and agents


def add_room(connection: Connection, room: RoomRecord) -> None:
    connection.execute(insert(rooms).values(**vars(room)))


def change_room(connection: Connection, room: str, **values: Any) -> None:
    connection.execute(update(rooms).where(rooms.c.id == room).values(**values))


def set_holding(connection: Connection, id: str, *, holding: bool) -> bool:
    """Hold or deliver new messages between agents. Return True if the setting has changed."""
    found = find_room(connection, id)
    if found is None or found.is_holding == holding:
        return False
    change_room(connection, id, settings={**found.settings, HOLDING: holding})
    return True


def find_room(connection: Connection, id: str) -> RoomRecord | None:
    row = connection.execute(_ROOM, {"id": id}).mappings().first()
    return None if row is None else RoomRecord(**row)


def current_room(connection: Connection, project: str, workflow: str, tag: str) -> RoomRecord | None:
    """Return the open room of a workflow and tag in a project, or None."""
    conditions = (rooms.c.project == project, rooms.c.workflow == workflow, rooms.c.tag == tag)
    row = connection.execute(select(rooms).where(*conditions, rooms.c.closed_at.is_(None))).mappings().first()
    return None if row is None else RoomRecord(**row)


def set_agents(connection: Connection, room: str, agents: Sequence[str], at: str) -> None:
    """Set the agents of a room and their order. Agents that stay keep their status."""
    known = set(agent_names(connection, room))
    for ordinal, agent in enumerate(agents):
        condition = (seats.c.room == room) & (seats.c.agent == agent)
        if agent in known:
            connection.execute(update(seats).where(condition).values(ordinal=ordinal))
        else:
            connection.execute(insert(seats).values(room=room, agent=agent, ordinal=ordinal, at=at))
    connection.execute(delete(seats).where(seats.c.room == room, seats.c.agent.not_in(agents)))


def list_agents(connection: Connection, room: str) -> list[RoomAgent]:
    """Return the agents of a room in the order of the workflow file."""
    found = connection.execute(_AGENTS, {"room": room})
    return [RoomAgent(agent=row.agent, task=row.task, state=row.state) for row in found]


def agent_names(connection: Connection, room: str) -> list[str]:
    """Return the names of the agents in the order of the workflow file."""
    return [row.agent for row in connection.execute(_AGENTS, {"room": room})]


def change_agent(connection: Connection, room: str, agent: str, at: str, **values: str | None) -> None:
    connection.execute(update(seats).where(seats.c.room == room, seats.c.agent == agent).values(at=at, **values))


# The channel


def add_message(connection: Connection, room: str, **message: Any) -> int:
    """Add a message and return its number in the room."""
    number = count_messages(connection, room) + 1
    connection.execute(_ADD_MESSAGE, {"room": room, "id": number, **message})
    return number


def list_messages(
    connection: Connection, room: str, *, since: int = 0, limit: int, newest: bool = False
) -> list[Message]:
    """Return messages after `since`, oldest first. `newest` selects the last `limit` messages, not the first."""
    order = messages.c.id.desc() if newest else messages.c.id
    condition = (messages.c.room == room) & (messages.c.id > since)
    rows = connection.execute(select(messages).where(condition).order_by(order).limit(limit))
    found = [_to_message(row) for row in rows]
    return found[::-1] if newest else found


def count_messages(connection: Connection, room: str) -> int:
    """Return the number of messages. Message numbers have no gaps, so the last number is the count."""
    return connection.execute(_LAST_NUMBER, {"room": room}).scalar_one() or 0


def talk_since_input(connection: Connection, room: str, limit: int, sender: str | None = None) -> list[Message]:
    """Return the messages of agents since the last message from outside, among the newest `limit` messages."""
    after = count_messages(connection, room) - limit
    condition = (messages.c.room == room) & (messages.c.id > after)
    if sender is not None:
        condition &= (messages.c.sender == sender) | (messages.c.hops == 0)
    found: list[Message] = []
    for row in connection.execute(select(messages).where(condition).order_by(messages.c.id.desc())):
        if row.hops == 0:
            break
        found.append(_to_message(row))
    return found[::-1]


def messages_to_user(
    connection: Connection, room: str, *, since: str, until: str | None, limit: int
) -> dict[str, list[Message]]:
    """Return the last `limit` messages of each agent to the user, oldest first. `since` and `until` are times."""
    recipient = func.json_each(messages.c.mentions).table_valued("value")
    conditions = [
        messages.c.room == room,
        messages.c.kind.in_(("message", "answer")),
        messages.c.at >= since,
        select(recipient.c.value).where(recipient.c.value == PERSON).exists(),
    ]
    if until is not None:
        conditions.append(messages.c.at < until)
    rank = func.row_number().over(partition_by=messages.c.sender, order_by=messages.c.id.desc())
    ranked = select(messages, rank.label("rank")).where(*conditions).subquery()
    found: dict[str, list[Message]] = {}
    for row in connection.execute(select(ranked).where(ranked.c.rank <= limit).order_by(ranked.c.id)):
        found.setdefault(row.sender, []).append(_to_message(row))
    return found


# Inboxes


def deliver(
    connection: Connection, room: str, message: int, agents: Iterable[str], priority: int, status: DeliveryStatus
) -> None:
    common = {"room": room, "message": message, "priority": priority, "status": status}
    if rows := [{**common, "agent": agent} for agent in agents]:
        connection.execute(_DELIVER, rows)


def unread_mail(connection: Connection, room: str, agent: str, limit: int) -> list[Mail]:
    """Return the oldest unread messages of an agent. An index keeps this fast in a long channel."""
    found = connection.execute(_READ_INBOX, {"room": room, "agent": agent, "limit": limit})
    return [Mail(message=_to_message(row), priority=row.priority) for row in found]


def has_unread_from_call(connection: Connection, room: str, agent: str, key: str) -> bool:
    """Return True if an agent has an unread system message, posted by a call whose key starts with `key`."""
    condition = (deliveries.c.room == room) & (deliveries.c.agent == agent) & (messages.c.sender == SYSTEM)
    posted = messages.c.key.startswith(key, autoescape=True)
    return connection.execute(_INBOX.where(condition, _UNREAD, posted).limit(1)).first() is not None


def mail_by_status(
    connection: Connection, room: str, status: DeliveryStatus, agent: str | None = None
) -> list[tuple[str, Mail]]:
    """Return the mail in a status with its recipients, of one agent or of all agents."""
    statement = _INBOX.add_columns(deliveries.c.agent).where(deliveries.c.room == room, deliveries.c.status == status)
    if agent is not None:
        statement = statement.where(deliveries.c.agent == agent)
    found = connection.execute(statement)
    return [(row.agent, Mail(message=_to_message(row), priority=row.priority)) for row in found]


def count_unread(connection: Connection, room: str) -> dict[str, int]:
    """Return the number of unread messages by agent. Held, handled and dead messages do not count."""
    counts = select(deliveries.c.agent, func.count()).select_from(seats.join(deliveries, _IS_RECIPIENT))
    rows = connection.execute(counts.where(seats.c.room == room, _UNREAD).group_by(deliveries.c.agent))
    return {row[0]: row[1] for row in rows}


def read_cursors(connection: Connection, room: str) -> dict[str, int]:
    """Return for each agent the number of the last message before its first unread message."""
    last = count_messages(connection, room)
    unread = seats.join(deliveries, _IS_RECIPIENT & _UNREAD, isouter=True)
    oldest = select(seats.c.agent, func.min(deliveries.c.message)).select_from(unread)
    rows = connection.execute(oldest.where(seats.c.room == room).group_by(seats.c.agent))
    return {row[0]: last if row[1] is None else row[1] - 1 for row in rows}


def move_mail(
    connection: Connection,
    room: str,
    agent: str | None,
    *,
    was: DeliveryStatus,
    now: DeliveryStatus,
    until: int | None = None,
    only: Collection[int] | None = None,
) -> list[tuple[str, int]]:
    """Change the status of deliveries, of one agent or of all. Return the agent and message number of each."""
    conditions = [deliveries.c.room == room, _UNREAD if was == "unread" else deliveries.c.status == was]
    if agent is not None:
        conditions.append(deliveries.c.agent == agent)
    if until is not None:
        conditions.append(deliveries.c.message <= until)
    if only is not None:
        conditions.append(deliveries.c.message.in_(only))
    return _set_status(connection, conditions, now)


def hold_talk(connection: Connection, room: str, exempt: Collection[str]) -> list[tuple[str, int]]:
    """Hold the unread messages between agents, except to `exempt`. Return the agent and message number of each."""
    own = (messages.c.room == room) & (messages.c.id == deliveries.c.message)
    talk = select(messages.c.id).where(own, messages.c.kind.in_(("message", "answer")), messages.c.hops > 0).exists()
    conditions = [deliveries.c.room == room, _UNREAD, deliveries.c.agent.not_in(exempt), talk]
    return _set_status(connection, conditions, "held")


def _set_status(
    connection: Connection, conditions: Sequence[ColumnElement[bool]], now: DeliveryStatus
) -> list[tuple[str, int]]:
    """Set the status of deliveries. Return the agent and message number of each."""
    columns = (deliveries.c.agent, deliveries.c.message)
    rows = connection.execute(select(*columns).where(*conditions).order_by(*columns))
    found = [(row.agent, row.message) for row in rows]
    if found:
        connection.execute(update(deliveries).where(*conditions).values(status=now))
    return found


def reset_hops(connection: Connection, room: str, numbers: Iterable[int]) -> None:
    """Set the hops of messages to 0, because the user has released them."""
    connection.execute(update(messages).where(messages.c.room == room, messages.c.id.in_(list(numbers))).values(hops=0))


# The log


def find_call(connection: Connection, room: str, run: str, key: str) -> tuple[str, dict[str, Any]] | None:
    """Return the operation and the result of a recorded call, or None."""
    row = connection.execute(_RECORDED, {"room": room, "run": run, "key": key}).first()
    return None if row is None else (row.op, row.result)


def add_log_entry(
    connection: Connection,
    room: str,
    op: str,
    actor: Actor,
    at: str,
    arguments: Mapping[str, Any],
    result: Mapping[str, Any],
) -> None:
    row = {"room": room, "op": op, "actor": actor.name, "run": actor.run, "key": actor.key, "at": at}
    connection.execute(_LOG, {**row, "arguments": dict(arguments), "result": dict(result)})


def log_entries(connection: Connection, room: str, *, since: int = 0) -> list[LogEntry]:
    """Return the log of a room in order."""
    condition = (room_log.c.room == room) & (room_log.c.place > since)
    rows = connection.execute(select(room_log).where(condition).order_by(room_log.c.place)).mappings()
    actors = ((row, Actor(name=row["actor"], run=row["run"], key=row["key"])) for row in rows)
    names = ("place", "op", "arguments", "result", "at")
    return [LogEntry(actor=actor, **{name: row[name] for name in names}) for row, actor in actors]


def shown_inbox(connection: Connection, room: str, run: str) -> ShownInbox:
    """Return the part of an inbox that a run has read."""
    last, hops = connection.execute(_SEEN, {"room": room, "run": run}).one()
    return ShownInbox(last_message_number=last or 0, hops=hops)


def shown_messages(connection: Connection, room: str, run: str) -> frozenset[int]:
    """Return the numbers of the messages that a run has read."""
    condition = (room_log.c.room == room) & (room_log.c.run == run) & _SHOWS_INBOX
    results = connection.execute(select(room_log.c.result).where(condition)).scalars()
    return frozenset(number for result in results for number in result.get("messages", ()))


def messages_read(connection: Connection, room: str, run: str) -> list[Message]:
    """Return the messages that a run has read, oldest first."""
    numbers = shown_messages(connection, room, run)
    query = select(messages).where(messages.c.room == room, messages.c.id.in_(numbers)).order_by(messages.c.id)
    return [_to_message(row) for row in connection.execute(query)]


def has_posted(connection: Connection, room: str, run: str) -> bool:
    """Return True if a run has posted a message."""
    posted = select(messages.c.id).where(messages.c.room == room, messages.c.run == run).limit(1)
    return connection.execute(posted).first() is not None


def _to_message(row: Row[Any]) -> Message:
    values: dict[str, Any] = {field.name: getattr(row, field.name) for field in fields(Message)}
    values["mentions"] = tuple(row.mentions)
    return Message(**values)


_LISTS = ("options", "guards", "eligible")


def add_proposal(connection: Connection, room: str, proposal: Proposal) -> None:
    values = {column.name: getattr(proposal, column.name) for column in proposals.c if column.name != "room"}
    values |= {name: list(values[name]) for name in _LISTS}
    connection.execute(insert(proposals).values(room=room, **values))


def count_proposals(connection: Connection, room: str) -> int:
    return connection.execute(select(func.count()).where(proposals.c.room == room)).scalar_one()


def find_proposal(connection: Connection, room: str, number: int) -> Proposal | None:
    return next(iter(_select_proposals(connection, room, proposals.c.number == number)), None)


def list_proposals(connection: Connection, room: str) -> list[Proposal]:
    """Return every proposal, oldest first."""
    return _select_proposals(connection, room)


def open_proposals(connection: Connection, room: str) -> list[Proposal]:
    return _select_proposals(connection, room, _OPEN)


def unarchived_proposals(connection: Connection, room: str) -> list[Proposal]:
    """Return the decided proposals that are not in decisions.md yet, ordered by the time of the decision."""
    found = _select_proposals(connection, room, proposals.c.result.is_not(None), proposals.c.archived.is_(False))
    return sorted(found, key=lambda proposal: proposal.ended_at or "")


def change_proposal(connection: Connection, room: str, number: int, **values: Any) -> None:
    condition = (proposals.c.room == room) & (proposals.c.number == number)
    connection.execute(update(proposals).where(condition).values(**values))


def put_vote(
    connection: Connection, room: str, number: int, choice: str, reason: str | None, actor: Actor, at: str
) -> None:
    condition = (votes.c.room == room) & (votes.c.proposal == number) & (votes.c.agent == actor.name)
    values = {"choice": choice, "reason": reason, "run": actor.run, "at": at}
    if connection.execute(update(votes).where(condition).values(**values)).rowcount == 0:
        connection.execute(insert(votes).values(room=room, proposal=number, agent=actor.name, **values))


def list_votes(connection: Connection, room: str, number: int) -> list[Vote]:
    """Return the votes on a proposal, ordered by agent."""
    condition = (votes.c.room == room) & (votes.c.proposal == number)
    found = connection.execute(select(votes).where(condition).order_by(votes.c.agent))
    return [Vote(agent=row.agent, choice=row.choice, reason=row.reason) for row in found]


def _select_proposals(connection: Connection, room: str, *where: ColumnElement[bool]) -> list[Proposal]:
    statement = select(proposals).where(proposals.c.room == room, *where).order_by(proposals.c.number)
    found: list[Proposal] = []
    for row in connection.execute(statement).mappings():
        values: dict[str, Any] = {name: value for name, value in row.items() if name != "room"}
        values |= {name: tuple(values[name]) for name in _LISTS}
        found.append(Proposal(**values))
    return found
