"""Turns of agents: builds the first message of an agent's run, and records the run's start, end and failures.

A run that failed for a transient reason is resumed after a pause, up to 5 times. Other failures start a new run, up to
3 attempts. After that, the mail becomes dead letters. Also reads the result of a team from the room or from the runs.
Does not decide when a turn starts (`agent_steps.py`, `scheduler.py`).

Invariant: the end of a run and the status of the mail that it was shown change in one transaction. Mail that the agent
has not acknowledged itself is handled exactly when the run is recorded as completed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from guildhall.core.clock import Clock, stamp
from guildhall.core.errors import ErrorInfo
from guildhall.room import inbox, shared_records
from guildhall.room import records as room_records
from guildhall.room.model import PERSON, SYSTEM, Actor, Mail
from guildhall.room.service import perform_in
from guildhall.room.text import as_said
from guildhall.runs.record import records as run_records
from guildhall.runs.record.entries import ModelCallFailed
from guildhall.runs.record.journal import entries_with
from guildhall.workflow import loop_guard, records

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from guildhall.room.operation import Turn
    from guildhall.room.service import Room
    from guildhall.runs.model import Stretch
    from guildhall.workflow.model import Workflow


ATTEMPTS = 3  # of a run that fails by what it does
RETRIES = 5  # of one that was disturbed from outside
FIRST_PAUSE = 1.0  # seconds
_LONGEST_PAUSE = 60.0
_DISTURBED = frozenset({"runtime_crashed"})

HOW_TO = """\
You are {agent}, one of several agents who share a room: {team}.
Above is what was said to you and what you have not handled yet. What you write as your last answer is seen by nobody: \
use the tools. channel_send says something to all; @name in it wakes that agent. channel_read and document_read show \
what happened so far and what you work on together. Mention somebody only if they are to do something. If there is \
nothing for you to do, call no_action and end."""


def first_message(agent: str, team: Sequence[str], batch: Sequence[Mail], *, more: int = 0, before: str = "") -> str:
    """What a run is told: its unread mail, and how the room works. `before`: what an earlier attempt has done."""
    lines = [f"Your inbox ({len(batch)} unread):" if batch else "Your inbox is empty."]
    for mail in batch:
        message = mail.message
        lines += [f"--- #{message.id} from {message.sender}, {mail.urgency} priority", as_said(message.content)]
    if more:
        lines.append(f"--- {more} more are waiting: inbox_read shows them.")
    lines += ["---", "", HOW_TO.format(agent=agent, team=", ".join(team))]
    if before:
        lines += ["", before]
    return "\n".join(lines)


@dataclass(frozen=True, kw_only=True)
class AgentTurn:
    """What changes with the beginning and the end of an agent's run."""

    instance: str
    room: str
    agent: str
    batch: Sequence[Mail]
    more: int = 0  # that wait beside these
    clock: Clock
    most_rounds: int  # in which nothing but talk happens
    first_pause: float  # seconds
    told: list[Turn]  # what is to be announced once it is committed

    def began(self, connection: Connection, run: str) -> None:
        actor, at = Actor(name=self.agent, run=run, key="inbox"), stamp(self.clock.now())
        marks = inbox.marks(self.batch)
        perform_in(connection, self.room, "inbox_shown", actor, at, left=self.more, **marks)
        records.seat_run(connection, self.instance, self.agent, run)

    def ended(self, connection: Connection, run: str, stretch: Stretch) -> None:
        at = stamp(self.clock.now())
        if stretch.status == "completed":
            seen = room_records.seen(connection, self.room, run)
            actor = Actor(name=self.agent, run=run)
            perform_in(connection, self.room, "acknowledged", actor, at, agent=self.agent, until=seen.until)
            self._stands(connection, "idle")
            loop_guard.count_turn(connection, self.instance, self.room, self.agent, run, self.most_rounds, at)
        elif stretch.status == "waiting":
            self._stands(connection, "waiting", run=run, attempts=self._attempts(connection))
        elif stretch.status == "failed":
            self._failed(connection, run, stretch, at)

    def could_not_begin(self, connection: Connection, error: ErrorInfo, run: str | None) -> None:
        """No run could be made, or the one of before not be gone on with: to try again would be of no use."""
        until = self.batch[-1].message.id if self.batch else room_records.seen(connection, self.room, run or "").until
        self._give_up(connection, until, run, error, stamp(self.clock.now()))

    def _failed(self, connection: Connection, run: str, stretch: Stretch, at: str) -> None:
        attempts = self._attempts(connection) + 1
        disturbed = _disturbed(connection, run, stretch)
        if stretch.is_at_limit:
            self._stands(connection, "failed", run=run, attempts=attempts - 1)  # with more, it goes on
        elif disturbed and attempts <= RETRIES:
            pause = min(_LONGEST_PAUSE, self.first_pause * 2 ** (attempts - 1))
            due = stamp(self.clock.now() + timedelta(seconds=pause))
            self._stands(connection, "backoff", run=run, attempts=attempts, due=due)
        elif not disturbed and attempts < ATTEMPTS:
            self._stands(connection, "idle", attempts=attempts)  # a new run, which is told what this one has done
        else:
            until = room_records.seen(connection, self.room, run).until
            self._give_up(
                connection,
                until,
                run,
                stretch.error or ErrorInfo(code="error", message=stretch.reason or "no reason given"),
                at,
            )

    def _give_up(self, connection: Connection, until: int, run: str | None, error: ErrorInfo, at: str) -> None:
        """Nobody can handle what the agent was shown: whoever said it is told so."""
        self._stands(connection, "failed", attempts=self._attempts(connection) + 1)
        records.note(connection, self.instance, self.agent, error=dict(error))
        actor = Actor.system(run=run)
        buried = perform_in(connection, self.room, "buried", actor, at, agent=self.agent, until=until).result
        if not buried:
            return
        letters = room_records.in_status(connection, self.room, "dead", self.agent)
        dead = [mail for _, mail in letters if mail.message.id in buried["messages"]]
        senders = {mail.message.sender for mail in dead} - {SYSTEM, self.agent}
        numbers = ", ".join(f"#{mail.message.id}" for mail in dead)
        said = f"{self.agent} could not handle {numbers}, and has stopped trying: {error['message']}"
        hops = max(mail.message.hops for mail in dead) + 1
        to = sorted(senders | {PERSON})
        performed = perform_in(connection, self.room, "tell", actor, at, text=said, to=to, hops=hops)
        if performed.turn is not None:
            self.told.append(performed.turn)

    def _attempts(self, connection: Connection) -> int:
        return records.agent(connection, self.instance, self.agent).attempts

    def _stands(
        self, connection: Connection, status: str, *, run: str | None = None, attempts: int = 0, due: str | None = None
    ) -> None:
        columns = {"status": status, "run": run, "attempts": attempts, "due_at": due}
        records.change_agent(connection, self.instance, self.agent, **columns)


def _disturbed(connection: Connection, run: str, stretch: Stretch) -> bool:
    """Whether a run failed for a reason that passes by itself, so that it is gone on with and not begun again."""
    code = stretch.error["code"] if stretch.error else None
    failures = entries_with(run_records.entries(connection, run), ModelCallFailed)
    if failures and failures[-1].data.code == code:
        return failures[-1].data.transient
    return code in _DISTURBED


def alone_message(connection: Connection, room: str, batch: Sequence[Mail], *, before: str = "") -> str:
    """What an agent is told that has no room to look something up in: all of it."""
    texts = [_whole(connection, room, mail) for mail in batch]
    return "\n\n".join([*texts, before] if before else texts)


def _whole(connection: Connection, room: str, mail: Mail) -> str:
    kept = mail.message.resource
    found = shared_records.resource(connection, room, kept) if kept else None
    return found[0] if found else mail.message.content


def result_of(workflow: Workflow, room: Room, *, since: str = "") -> str:
    """The last that an agent said to all, after the time at which this generation began."""
    names = {agent.name for agent in workflow.agents}
    for message in reversed(room.messages(newest=True)):
        if message.sender in names and message.kind == "message" and message.at >= since:
            return message.content
    return ""


def outputs_of(connection: Connection, instance: str, workflow: Workflow) -> str:
    """What the agents gave: the text of the only one, or of each under its name."""
    runs = {agent.name: records.last_run(connection, instance, agent.name) for agent in workflow.agents}
    given = {name: _text(run.output) for name, run in runs.items() if run is not None}
    if len(given) == 1:
        return next(iter(given.values()))
    return "\n\n".join(f"{name}:\n{text}" for name, text in given.items())


def _text(output: object) -> str:
    return output if isinstance(output, str) else json.dumps(output, indent=2, ensure_ascii=False)
