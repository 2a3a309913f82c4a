"""The loop guard: holds the messages of agents that only talk to each other, and asks the user about them.

Three limits detect a loop. The room checks two of them when a message is posted: messages that follow from each other
without the user (`max_hops`), and repeated messages of an agent (`max_repeats`). This module counts the third at the
end of each turn: rounds of turns without progress (`max_rounds_without_progress`). The answer `yes` delivers the held
messages, and `no` drops them. Also ends proposals whose time is up.
Does not hold or deliver messages itself: the operations are in `room/inbox.py`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from guildhall.core.clock import Clock, moment, stamp
from guildhall.room import records as room_records
from guildhall.room import voting
from guildhall.room.model import Actor, Mail, Message
from guildhall.room.service import perform_in
from guildhall.runs.model import Question
from guildhall.runs.record import records as run_records
from guildhall.runs.record.entries import Answered, LoopAsked, ToolStarted
from guildhall.runs.record.journal import entries_with
from guildhall.workflow import records

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import Connection

    from guildhall.room.operation import Turn
    from guildhall.room.service import Room
    from guildhall.runs.execution.ledger import LiveLedger
    from guildhall.store.engine import Store
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
    calls = entries_with(run_records.entries(connection, run), ToolStarted)
    return any(call.data.tool not in TALK for call in calls)


def loop_question(connection: Connection, instance: Instance, limits: TeamLimits) -> Question:
    """What the person is asked: who talks to whom how often, and what is held back."""
    room = instance.room
    held = room_records.in_status(connection, room, "held")
    pairs = _pairs(room_records.since_outside(connection, room, _LOOKED_AT))
    talkers = sorted({sender for sender, _ in pairs} or {mail.message.sender for _, mail in held})
    lines = [f"- {sender} to {reached}: {count}" for (sender, reached), count in pairs.most_common(_SHOWN)]
    waiting = [_held_line(agent, mail) for agent, mail in held[:_SHOWN]]
    more = [f"- ... {len(held) - _SHOWN} more"] if len(held) > _SHOWN else []
    body = [
        f"{_why(connection, instance, limits)} Messages since somebody from outside last spoke:",
        *lines,
        "Held back:",
        *waiting,
        *more,
        "'yes' delivers it and allows as much again; 'no' does not deliver it.",
    ]
    title = f"{' and '.join(talkers)} go round in circles in {instance.target}"
    return Question(title=title[:_LONGEST], body="\n".join(body), choices=("yes", "no"))


def release(connection: Connection, instance: str, room: str, at: str) -> Turn | None:
    """Deliver the held messages and count rounds from 0. Return the turn to announce."""
    records.forget_talk(connection, instance)
    return perform_in(connection, room, "released", Actor.person(), at).turn


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


def _pairs(messages: list[Message]) -> Counter[tuple[str, str]]:
    return Counter((one.sender, name) for one in messages if one.kind == "message" for name in one.mentions)


def _held_line(agent: str, mail: Mail) -> str:
    text = " ".join(mail.message.content.split())
    shown = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    return f"- #{mail.message.id} from {mail.message.sender} to {agent}: {shown}"


def _why(connection: Connection, instance: Instance, limits: TeamLimits) -> str:
    held = room_records.in_status(connection, instance.room, "held")
    if any(mail.message.hops > limits.max_hops for _, mail in held):
        return f"More than {limits.max_hops} messages have followed from one another (max_hops)."
    talked = records.talk(connection, instance.id)
    if _too_long(talked, limits.max_rounds_without_progress):
        rounds = limits.max_rounds_without_progress
        return f"In {rounds} rounds nothing happened but talk (max_rounds_without_progress)."
    return f"The same was said more than {limits.max_repeats} times (max_repeats)."


def _too_long(talked: Mapping[str, int], most: int) -> bool:
    return len(talked) > 1 and sum(talked.values()) >= most * len(talked)


POLL = 30.0  # seconds: how often is looked whether a wake-up got lost
_LOOP = "loop/"  # before the number of an ask about one


def seconds_until(due: str | None, clock: Clock) -> float | None:
    """How long to wait for a moment; None: for as long as it takes."""
    return None if due is None else max(0.0, min(POLL, (moment(due) - clock.now()).total_seconds()))


@dataclass(frozen=True, kw_only=True)
class Minder:
    """Minds the room of one team."""

    instance: Instance
    limits: TeamLimits
    room: Room
    store: Store
    clock: Clock
    ledger: LiveLedger  # of the workflow's own run
    looped: asyncio.Event  # something may have been held back
    proposed: asyncio.Event  # a vote has begun, or ended
    moved: asyncio.Event  # is set when the team may stand otherwise than before

    async def mind_loops(self) -> None:
        """Asks the person about what is held back, one thing at a time."""
        while True:
            self.looped.clear()
            if self.store.read(lambda connection: bool(room_records.in_status(connection, self.room.id, "held"))):
                await self._ask_about_loop()
            else:
                await self.looped.wait()

    async def _ask_about_loop(self) -> None:
        answers = [entry for entry in self.ledger.journal.all(Answered) if (entry.key or "").startswith(_LOOP)]
        key = f"{_LOOP}{len(answers) + 1}"
        question = self.store.read(lambda connection: loop_question(connection, self.instance, self.limits))
        ask = await self.ledger.opened(
            "loop", key, [key], question, lambda ask: LoopAsked(title=question.title, ask=ask)
        )
        self.moved.set()
        ask = await self.ledger.closed(ask)
        if ask.answer is None:  # withdrawn: the workflow was stopped
            await asyncio.get_running_loop().create_future()
        turns: list[Turn] = []

        def then(connection: Connection) -> None:
            at = stamp(self.clock.now())
            is_released = ask.answer is not None and ask.answer.choice == "yes"
            if is_released:
                turn = release(connection, self.instance.id, self.room.id, at)
            else:
                turn = drop(connection, self.instance, at)
            turns.extend([turn] if turn is not None else [])

        await self.ledger.apply(ask, key, then=then)
        for turn in turns:
            await self.room.follow(turn)
        self.moved.set()

    async def mind_proposals(self) -> None:
        """Ends proposals when their time is up."""
        while True:
            self.proposed.clear()
            due = self.store.read(lambda connection: voting.next_end(connection, self.room.id))
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds_until(due, self.clock)):
                    await self.proposed.wait()
                continue
            if due is not None and due <= stamp(self.clock.now()):
                await self.room.perform("expire", Actor.system())
                self.moved.set()
