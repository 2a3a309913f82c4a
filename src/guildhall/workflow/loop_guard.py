"""The loop guard: holds the messages of agents that only talk to each other, and words the question about them.

The room detects `max_hops` and `max_repeats` when a message is posted. This module counts rounds of turns without
progress (`max_rounds_without_progress`) at the end of each turn. The answer `yes` delivers the held messages.
Does not ask the user (`scheduler.py`), or hold and deliver messages itself (`room/inbox.py`).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from guildhall.room import records as room_records
from guildhall.room import voting
from guildhall.room.model import Actor, Mail, Message
from guildhall.room.service import perform_in
from guildhall.runs.model import Question
from guildhall.runs.record import records as run_records
from guildhall.runs.record.entries import ToolStarted
from guildhall.runs.record.journal import entries_with
from guildhall.workflow import records

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import Connection

    from guildhall.room.operation import Turn
    from guildhall.workflow.definition import TeamLimits
    from guildhall.workflow.target import Instance


_LOOKED_AT = 1_000  # messages
_SHOWN = 10  # pairs, and messages that are held back
_LONGEST = 200  # characters of each
TALK = frozenset(
    {
        *("channel_send", "channel_read", "inbox_read", "inbox_ack", "status_set", "team_list", "no_action"),
        *("document_read", "document_list", "document_suggest", "resource_read"),
        *("proposal_create", "proposal_vote", "proposal_status", "proposal_cancel"),
    }
)


def count_turn(connection: Connection, instance: str, room: str, agent: str, run: str, most: int, at: str) -> None:
    """Counts a turn that is over. After too many rounds of mere talk, what agents have said is held back.

    A round is over when each of those who talk has had a turn, on the average. Something that is said from outside, or
    is done, begins the count anew.
    """
    asked_from_outside = room_records.seen(connection, room, run).hops == 0
    if asked_from_outside or _progress(connection, room, run):
        records.forget_talk(connection, instance)
        perform_in(connection, room, "held_no_more", Actor.system(), at)
        return
    talked = records.talk(connection, instance)
    talked[agent] = talked.get(agent, 0) + 1
    records.note(connection, instance, agent, talked=talked[agent])
    if _too_long(talked, most):
        busy = [state.name for state in records.agents_of(connection, instance) if state.run is not None]
        perform_in(connection, room, "held", Actor.system(), at, but=sorted(busy))


def _progress(connection: Connection, room: str, run: str) -> bool:
    """Whether a run has done anything but talk: a document, a tool of its own, or a proposal that got decided."""
    began = run_records.find_run(connection, run)
    if began is not None and voting.decided_since(connection, room, began.created_at):
        return True
    calls = entries_with(run_records.list_entries(connection, run), ToolStarted)
    return any(call.data.tool not in TALK for call in calls)


def loop_question(connection: Connection, instance: Instance, limits: TeamLimits) -> Question:
    """What the person is asked: who talks to whom how often, and what is held back."""
    room = instance.room
    held = room_records.in_status(connection, room, "held")
    talk = (one for one in room_records.since_outside(connection, room, _LOOKED_AT) if one.kind == "message")
    pairs = Counter((one.sender, name) for one in talk for name in one.mentions)
    talkers = sorted({sender for sender, _ in pairs} or {mail.message.sender for _, mail in held})
    lines = [f"- {sender} to {reached}: {count}" for (sender, reached), count in pairs.most_common(_SHOWN)]
    waiting = [_held_line(agent, mail.message) for agent, mail in held[:_SHOWN]]
    more = [f"- ... {len(held) - _SHOWN} more"] if len(held) > _SHOWN else []
    body = [
        f"{_why(connection, instance, limits, held)} Messages since somebody from outside last spoke:",
        *lines,
        "Held back:",
        *waiting,
        *more,
        "'yes' delivers it and allows as much again; 'no' does not deliver it.",
    ]
    title = f"{' and '.join(talkers)} go round in circles in {instance.target}"
    return Question(title=title[:_LONGEST], body="\n".join(body), choices=("yes", "no"))


def release(connection: Connection, instance: Instance, at: str) -> Turn | None:
    """Deliver the held messages and count rounds from 0. Return the turn to announce."""
    records.forget_talk(connection, instance.id)
    return perform_in(connection, instance.room, "released", Actor.person(), at).turn


def drop(connection: Connection, instance: Instance, at: str) -> Turn | None:
    """Drop the held messages. Return the turn to announce, or None if no message was held."""
    records.forget_talk(connection, instance.id)
    mail = perform_in(connection, instance.room, "dropped", Actor.person(), at).result.get("mail")
    if not mail:
        return None
    numbers = ", ".join(f"#{number}" for number in sorted({number for _, number in mail}))
    said = f"A person has ended this exchange; not delivered: {numbers}"
    actor = Actor.system(run=instance.id)
    return perform_in(connection, instance.room, "tell", actor, at, text=said, to=[], hops=0).turn


def _held_line(agent: str, message: Message) -> str:
    text = " ".join(message.content.split())
    shown = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    return f"- #{message.id} from {message.sender} to {agent}: {shown}"


def _why(connection: Connection, instance: Instance, limits: TeamLimits, held: Sequence[tuple[str, Mail]]) -> str:
    if any(mail.message.hops > limits.max_hops for _, mail in held):
        return f"More than {limits.max_hops} messages have followed from one another (max_hops)."
    talked = records.talk(connection, instance.id)
    if _too_long(talked, limits.max_rounds_without_progress):
        rounds = limits.max_rounds_without_progress
        return f"In {rounds} rounds nothing happened but talk (max_rounds_without_progress)."
    return f"The same was said more than {limits.max_repeats} times (max_repeats)."


def _too_long(talked: Mapping[str, int], most: int) -> bool:
    return len(talked) > 1 and sum(talked.values()) >= most * len(talked)
