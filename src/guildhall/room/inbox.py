"""The inbox of an agent: reads its unread mentions, and marks them as handled, held or dead.

Reading does not acknowledge a mention. A completed run does, and `inbox_ack` does earlier.
Does not deliver new messages (`channel.py`) and does not decide the fate of a run's mail (`workflow/agent_steps.py`).

Invariant: operations of the kind `mail` are part of a transaction of the workflow, because the end of a run and the
status of the mail that it was shown are a single fact.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from guildhall.core.errors import UsageError
from guildhall.room import records
from guildhall.room.model import DeliveryStatus, Mail, check_agent_name
from guildhall.room.operation import READS, WRITES, Turn, operation
from guildhall.room.text import mail_text

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from sqlalchemy import Connection

MAX_BATCH = 100  # messages that are shown at a time
MAX_BATCH_CHARS = 40_000  # characters that are shown at a time


def unread_batch(connection: Connection, room: str, agent: str) -> list[Mail]:
    """Return the oldest unread mail of an agent, at most one batch. It never skips an older message."""
    batch: list[Mail] = []
    size = 0
    for mail in records.unread_mail(connection, room, agent, MAX_BATCH):
        size += len(mail.message.content)
        if batch and size > MAX_BATCH_CHARS:
            break
        batch.append(mail)
    return batch


def describe_batch(batch: Sequence[Mail]) -> dict[str, Any]:
    """Return the numbers of the messages in a batch, the last of them, and their largest number of hops."""
    if not batch:
        return {}
    numbers = [mail.message.id for mail in batch]
    return {"until": numbers[-1], "hops": max(mail.message.hops for mail in batch), "messages": numbers}


# Operations of agents


@operation(READS)
def inbox_read(turn: Turn) -> dict[str, Any]:
    """List your unread messages. They are marked as handled when your run completes."""
    batch = unread_batch(turn.connection, turn.room.id, turn.actor.name)
    left = records.count_unread(turn.connection, turn.room.id).get(turn.actor.name, 0) - len(batch)
    return {"text": mail_text(batch, left), **describe_batch(batch)}


@operation(WRITES)
def inbox_ack(turn: Turn, until: int) -> dict[str, Any]:
    """Mark messages as handled now, not only when your run completes. They are not delivered again.

    Args:
        until: The number of the last message that you have handled. Older messages are marked, too.
    """
    run = turn.actor.run
    shown = records.shown_inbox(turn.connection, turn.room.id, run).until if run else 0
    if not 1 <= until <= shown:
        hint = f"Your inbox was shown up to message {shown}." if shown else "Read it first with inbox_read."
        raise UsageError(f"until: message {until} of your inbox was not shown to you", hint=hint)
    numbers = _mark_shown(turn, turn.actor.name, until, "done")
    return {"text": f"Messages marked as handled: {len(numbers)}.", "messages": numbers}


# Operations of the workflow


@operation(kind="mail", unlogged=("messages", "until", "hops"))
def inbox_shown(
    turn: Turn, left: int, messages: Sequence[int] = (), until: int | None = None, hops: int | None = None
) -> dict[str, Any]:
    """Record the part of its inbox that a run sees at its start (`describe_batch`). `left` messages are missing."""
    return {"until": until, "hops": hops, "messages": list(messages)} if messages else {}


@operation(kind="mail")
def acknowledge(turn: Turn, agent: str, until: int) -> dict[str, Any] | None:
    """Mark the mail up to a message as handled. A run handles only the messages that it was shown."""
    numbers = _mark_shown(turn, agent, until, "done")
    return {"messages": numbers} if numbers else None


@operation(kind="mail")
def bury(turn: Turn, agent: str, until: int) -> dict[str, Any] | None:
    """Turn the mail up to a message into dead letters, because no run could handle it."""
    numbers = _mark_shown(turn, agent, until, "dead")
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
def hold(turn: Turn, but: Collection[str]) -> dict[str, Any] | None:
    """Hold new and unread messages between agents. Agents in `but` keep their unread messages."""
    moved = records.hold_talk(turn.connection, turn.room_id, but)
    changed = moved or records.set_holding(turn.connection, turn.room_id, holding=True)
    return {"mail": moved} if changed else None


@operation(kind="mail")
def stop_holding(turn: Turn) -> dict[str, Any] | None:
    """Deliver the messages of agents again from now on. Held messages stay held."""
    return {} if records.set_holding(turn.connection, turn.room_id, holding=False) else None


@operation(kind="mail")
def drop_held(turn: Turn) -> dict[str, Any] | None:
    """Turn the held messages into dead letters."""
    was_holding = records.set_holding(turn.connection, turn.room_id, holding=False)
    moved = records.move_mail(turn.connection, turn.room_id, None, was="held", now="dead")
    return {"mail": moved} if moved or was_holding else None


@operation(kind="mail")
def release(turn: Turn) -> dict[str, Any] | None:
    """Deliver the held messages, and count their hops from 0."""
    was_holding = records.set_holding(turn.connection, turn.room_id, holding=False)
    moved = records.move_mail(turn.connection, turn.room_id, None, was="held", now="unread")
    if moved:
        records.reset_hops(turn.connection, turn.room_id, {number for _, number in moved})
        turn.wakes.update(agent for agent, _ in moved)
    return {"mail": moved} if moved or was_holding else None


def _mark_shown(turn: Turn, agent: str, until: int, status: DeliveryStatus) -> list[int]:
    """Mark unread mail up to a message and return the numbers. A run marks only the messages that it was shown."""
    check_agent_name(agent)
    # A message that was released late may be older than the ones that the run was shown, and is not handled yet.
    only = records.shown_messages(turn.connection, turn.room_id, turn.actor.run) if turn.actor.run is not None else None
    moved = records.move_mail(turn.connection, turn.room_id, agent, was="unread", now=status, until=until, only=only)
    return [number for _, number in moved]
