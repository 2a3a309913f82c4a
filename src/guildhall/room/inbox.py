"""The inbox of an agent: its unread mentions. Reading acknowledges nothing; a successful run does, up to what it saw.

These functions work inside a transaction of whoever calls them: the end of a run and the fate of its mail are one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from guildhall.room import records
from guildhall.room.model import Actor

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from sqlalchemy import Connection

    from guildhall.room.model import Mail, Seen

BATCH = 100  # messages that are shown at a time,
BATCH_TEXT = 40_000  # and characters of them; the rest comes with the next look


def unread(connection: Connection, room: str, agent: str) -> list[Mail]:
    """The oldest unread mail, as much as is shown at a time. Never a newer message without all the older ones."""
    batch: list[Mail] = []
    size = 0
    for mail in records.unread(connection, room, agent, BATCH):
        size += len(mail.message.content)
        if batch and size > BATCH_TEXT:
            break
        batch.append(mail)
    return batch


def left(connection: Connection, room: str, agent: str, batch: Sequence[Mail]) -> int:
    """How much unread mail there is beyond a batch of it."""
    return records.count_unread_after(connection, room, agent, batch[-1].message.id) if batch else 0


def waiting(connection: Connection, room: str) -> dict[str, int]:
    """The seated agents that have unread mail, and how much. What is held, done or dead does not count."""
    return records.count_unread(connection, room)


def shown(
    connection: Connection, room: str, agent: str, run: str, batch: Sequence[Mail], at: str, *, left: int = 0
) -> None:
    """Notes that a run was shown mail in its first message, and that so much is left. Again: nothing happens."""
    actor = Actor(name=agent, run=run, key="inbox")
    if records.recorded(connection, room, run, "inbox") is None:
        records.log(connection, room, "inbox_shown", actor, at, {"left": left}, marks(batch))


def marks(batch: Sequence[Mail]) -> dict[str, Any]:
    """Which mail it is, how far it goes, and the most hops that any of it has made."""
    if not batch:
        return {}
    numbers = [mail.message.id for mail in batch]
    return {"until": numbers[-1], "hops": max(mail.message.hops for mail in batch), "messages": numbers}


def seen(connection: Connection, room: str, run: str) -> Seen:
    """Up to which message a run was shown its inbox."""
    return records.seen(connection, room, run)


def acknowledge(
    connection: Connection, room: str, agent: str, until: int, *, at: str, run: str | None = None
) -> list[int]:
    """The mail up to a message is handled, by a run what it was shown of it; which messages these were."""
    return _settle(connection, room, agent, until, "acknowledged", Actor(name=agent, run=run), at)


def bury(connection: Connection, room: str, agent: str, until: int, *, at: str, run: str | None = None) -> list[Mail]:
    """Nobody could handle the mail up to a message: dead letters; which these are. Their senders are to be told."""
    buried = set(_settle(connection, room, agent, until, "buried", Actor.system(run), at))
    dead = records.in_status(connection, room, agent, "dead") if buried else []
    return [mail for _, mail in dead if mail.message.id in buried]


def dead(connection: Connection, room: str, agent: str | None = None) -> list[tuple[str, Mail]]:
    """The dead letters of an agent, or of all: agent and mail."""
    return records.in_status(connection, room, agent, "dead")


def held(connection: Connection, room: str) -> list[tuple[str, Mail]]:
    """What is kept back until a person says what is to become of it: agent and mail."""
    return records.in_status(connection, room, None, "held")


def deliver_again(connection: Connection, room: str, agent: str | None = None, *, at: str) -> frozenset[str]:
    """Dead letters are unread again; whose they are, to be woken after the commit."""
    moved = records.mark(connection, room, agent, was="dead", now="unread")
    if moved:
        records.log(connection, room, "delivered_again", Actor.person(), at, {"agent": agent}, {"mail": moved})
    return frozenset(agent for agent, _ in moved)


def hold(connection: Connection, room: str, *, but: Collection[str], at: str) -> list[tuple[str, int]]:
    """From now on keeps back what agents say to one another, and what is unread of it, `but` that to some; which."""
    moved = records.hold_talk(connection, room, but)
    if moved or records.set_holding(connection, room, holding=True):
        records.log(connection, room, "held", Actor.system(), at, {"but": sorted(but)}, {"mail": moved})
    return moved


def hold_no_more(connection: Connection, room: str, *, at: str) -> None:
    """What agents say from now on goes out again. What is held stays so."""
    if records.set_holding(connection, room, holding=False):
        records.log(connection, room, "held_no_more", Actor.system(), at, {}, {})


def drop(connection: Connection, room: str, *, at: str) -> list[tuple[str, int]]:
    """What was held is never delivered: dead letters; which these are."""
    held_till_now = records.set_holding(connection, room, holding=False)
    moved = records.mark(connection, room, None, was="held", now="dead")
    if moved or held_till_now:
        records.log(connection, room, "dropped", Actor.person(), at, {}, {"mail": moved})
    return moved


def release(connection: Connection, room: str, *, at: str) -> frozenset[str]:
    """What was held goes out, and its hops are counted anew; whose it is, to be woken after the commit."""
    held_till_now = records.set_holding(connection, room, holding=False)
    moved = records.mark(connection, room, None, was="held", now="unread")
    if moved or held_till_now:
        records.forget_hops(connection, room, {number for _, number in moved})
        records.log(connection, room, "released", Actor.person(), at, {}, {"mail": moved})
    return frozenset(agent for agent, _ in moved)


def _settle(connection: Connection, room: str, agent: str, until: int, op: str, actor: Actor, at: str) -> list[int]:
    # What was let go late may be older than what the run was shown, and is still to be handled.
    only = records.shown(connection, room, actor.run) if actor.run is not None else None
    now = "done" if op == "acknowledged" else "dead"
    moved = records.mark(connection, room, agent, was="unread", now=now, until=until, only=only)
    numbers = [number for _, number in moved]
    if numbers:
        records.log(connection, room, op, actor, at, {"agent": agent, "until": until}, {"messages": numbers})
    return numbers
