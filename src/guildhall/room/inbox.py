"""The inbox of an agent: reads its unread messages, and marks them as handled, held or dead.

Reading does not acknowledge a message. The completion of the run does, or an earlier `inbox_ack`.
Does not deliver new messages (`channel.py`) or decide what becomes of a run's mail (`workflow/agent_steps.py`).

Invariant: operations of the kind `mail` share the transaction of the workflow that records the end of a run.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from guildhall.core.errors import UsageError
from guildhall.room import records
from guildhall.room.model import DeliveryStatus, Mail, check_agent_name
from guildhall.room.operation import READS, WRITES, Turn, operation
from guildhall.room.text import mail_text

if TYPE_CHECKING:
    from sqlalchemy import Connection

MAX_BATCH = 100  # messages in the input of a run
MAX_BATCH_CHARS = 40_000


def unread_batch(connection: Connection, room: str, agent: str) -> list[Mail]:
    """Return the oldest unread mail of an agent, at most one batch, without gaps."""
    batch: list[Mail] = []
    size = 0
    for mail in records.unread_mail(connection, room, agent, MAX_BATCH):
        size += len(mail.message.content)
        if batch and size > MAX_BATCH_CHARS:
            break
        batch.append(mail)
    return batch


def describe_batch(batch: Sequence[Mail]) -> dict[str, Any]:
    """Return the message numbers of a batch, the last number, and the largest number of hops."""
    if not batch:
        return {}
    numbers = [mail.message.id for mail in batch]
    return {"until": numbers[-1], "hops": max(mail.message.hops for mail in batch), "messages": numbers}


# Operations of agents


@operation(READS)
def inbox_read(turn: Turn) -> dict[str, Any]:
    """List your unread messages. They are marked as handled when your run completes."""
    batch = unread_batch(turn.connection, turn.room.id, turn.actor.name)
    unread_count = records.count_unread(turn.connection, turn.room.id).get(turn.actor.name, 0)
    return {"text": mail_text(batch, unread_count - len(batch)), **describe_batch(batch)}


@operation(WRITES)
def inbox_ack(turn: Turn, until: int) -> dict[str, Any]:
    """Mark messages as handled now, not only when your run completes.

    Args:
        until: The number of the last message that you have handled. Older messages are marked, too.
    """
    run = turn.actor.run
    shown = records.shown_inbox(turn.connection, turn.room.id, run).last_message_number if run else 0
    if not 1 <= until <= shown:
        hint = f"The last message that you have read is {shown}." if shown else "Read your inbox with inbox_read."
        raise UsageError(f"invalid until: you have not read message {until}", hint=hint)
    numbers = _mark_until(turn, turn.actor.name, until, "done")
    return {"text": f"Messages marked as handled: {len(numbers)}.", "messages": numbers}


# Operations of the workflow


@operation(kind="mail", unlogged=("messages", "until", "hops"))
def inbox_shown(
    turn: Turn, left: int, messages: Sequence[int] = (), until: int | None = None, hops: int | None = None
) -> dict[str, Any]:
    """Record the mail in the input of a run (`describe_batch`). `left` unread messages are not part of it."""
    return {"until": until, "hops": hops, "messages": list(messages)} if messages else {}


@operation(kind="mail")
def acknowledge(turn: Turn, agent: str, until: int) -> dict[str, Any] | None:
    """Mark the mail up to a message as handled. A run marks only messages that it has read."""
    numbers = _mark_until(turn, agent, until, "done")
    return {"messages": numbers} if numbers else None


@operation(kind="mail")
def mark_dead(turn: Turn, agent: str, until: int) -> dict[str, Any] | None:
    """Turn the mail up to a message into dead letters, because no run could handle it."""
    numbers = _mark_until(turn, agent, until, "dead")
    return {"messages": numbers} if numbers else None


@operation(kind="mail")
def redeliver(turn: Turn, agent: str | None = None) -> dict[str, Any] | None:
    """Make dead letters of an agent, or of all agents, unread again."""
    if agent is not None:
        check_agent_name(agent)
    moved = records.move_mail(turn.connection, turn.room_id, agent, was="dead", now="unread")
    turn.wakes.update(agent for agent, _ in moved)
    return {"mail": moved} if moved else None


@operation(kind="mail")
def hold_messages(turn: Turn, exempt: Collection[str]) -> dict[str, Any] | None:
    """Hold new and unread messages between agents. Agents in `exempt` keep their unread messages."""
    moved = records.hold_talk(turn.connection, turn.room_id, exempt)
    changed = moved or records.set_holding(turn.connection, turn.room_id, holding=True)
    return {"mail": moved} if changed else None


@operation(kind="mail")
def stop_holding(turn: Turn) -> dict[str, Any] | None:
    """Deliver new messages between agents again. Held messages stay held."""
    return {} if records.set_holding(turn.connection, turn.room_id, holding=False) else None


@operation(kind="mail")
def drop_held(turn: Turn) -> dict[str, Any] | None:
    """Turn the held messages into dead letters."""
    was_holding = records.set_holding(turn.connection, turn.room_id, holding=False)
    moved = records.move_mail(turn.connection, turn.room_id, None, was="held", now="dead")
    return {"mail": moved} if moved or was_holding else None


@operation(kind="mail")
def release_messages(turn: Turn) -> dict[str, Any] | None:
    """Deliver the held messages, and count their hops from 0."""
    was_holding = records.set_holding(turn.connection, turn.room_id, holding=False)
    moved = records.move_mail(turn.connection, turn.room_id, None, was="held", now="unread")
    if moved:
        records.reset_hops(turn.connection, turn.room_id, {number for _, number in moved})
        turn.wakes.update(agent for agent, _ in moved)
    return {"mail": moved} if moved or was_holding else None


def _mark_until(turn: Turn, agent: str, until: int, status: DeliveryStatus) -> list[int]:
    """Set the status of unread mail up to a message, and return its numbers. A run changes only mail that it read."""
    check_agent_name(agent)
    # A message that was released late can be older than the messages that the run has read.
    only = records.shown_messages(turn.connection, turn.room_id, turn.actor.run) if turn.actor.run is not None else None
    moved = records.move_mail(turn.connection, turn.room_id, agent, was="unread", now=status, until=until, only=only)
    return [number for _, number in moved]
