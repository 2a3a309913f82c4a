"""What is minded while agents work: loops, about which a person is asked, and votes, whose time is up."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from guildhall.core.clock import moment, stamp
from guildhall.room import inbox, voting
from guildhall.runs.record.entries import Answered, LoopAsked
from guildhall.workflow import loops

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from guildhall.core.clock import Clock
    from guildhall.room.operation import Turn
    from guildhall.room.room import Room
    from guildhall.runs.ledger import LiveLedger
    from guildhall.store.engine import Store
    from guildhall.workflow.definition import TeamLimits
    from guildhall.workflow.instance import Instance

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
            if self.store.read(lambda connection: bool(inbox.held_mail(connection, self.room.id))):
                await self._ask_about_loop()
            else:
                await self.looped.wait()

    async def _ask_about_loop(self) -> None:
        answers = [entry for entry in self.ledger.journal.all(Answered) if (entry.key or "").startswith(_LOOP)]
        key = f"{_LOOP}{len(answers) + 1}"
        question = self.store.read(lambda connection: loops.question(connection, self.instance, self.limits))
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
                turn = loops.release(connection, self.instance.id, self.room.id, at)
            else:
                turn = loops.drop(connection, self.instance, at)
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
                await self.room.expire()
                self.moved.set()
