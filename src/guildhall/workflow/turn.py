"""One agent's turn: what its run is told first, what it is given, and what its end means for its mail.

The end of a run and the fate of the mail that it was shown are one transaction: a message is handled exactly when the
run that handled it is on record as completed.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from guildhall.core.clock import stamp
from guildhall.core.errors import ErrorInfo
from guildhall.room import inbox
from guildhall.room.model import PERSON, SYSTEM, Actor
from guildhall.room.table import perform_in
from guildhall.room.text import as_said
from guildhall.runs import records as run_records
from guildhall.runs.journal import entries_with
from guildhall.runs.record.entries import ModelCallFailed
from guildhall.workflow import loops, records

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from guildhall.core.clock import Clock
    from guildhall.room.model import Mail
    from guildhall.room.operation import Turn
    from guildhall.runs.model import Stretch

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
            seen = inbox.seen(connection, self.room, run)
            actor = Actor(name=self.agent, run=run)
            perform_in(connection, self.room, "acknowledged", actor, at, agent=self.agent, until=seen.until)
            self._stands(connection, "idle")
            loops.count_turn(connection, self.instance, self.room, self.agent, run, self.most_rounds, at)
        elif stretch.status == "waiting":
            self._stands(connection, "waiting", run=run, attempts=self._attempts(connection))
        elif stretch.status == "failed":
            self._failed(connection, run, stretch, at)

    def could_not_begin(self, connection: Connection, error: ErrorInfo, run: str | None) -> None:
        """No run could be made, or the one of before not be gone on with: to try again would be of no use."""
        until = self.batch[-1].message.id if self.batch else inbox.seen(connection, self.room, run or "").until
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
            until = inbox.seen(connection, self.room, run).until
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
        letters = inbox.dead_letters(connection, self.room, self.agent)
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
