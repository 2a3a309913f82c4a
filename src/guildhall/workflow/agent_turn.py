"""Turns of agents: derive the next step of an agent from the database, and record the start and end of its run.

A step resumes an unfinished run, or starts a run on the unread mail. A run that failed for a transient reason is
resumed after a pause, up to 5 times. Other failures start a new run, up to 3 attempts, whose first message lists the
tool calls of the failed runs. After that, the mail becomes dead letters. Also reads the result of a team.
Does not execute steps (`scheduler.py`).

Invariant: a step depends on the database alone, so a killed team continues at its last recorded state. The end of a
run and the status of the mail that it was shown change in one transaction.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from guildhall.core.clock import Clock, stamp
from guildhall.core.errors import ErrorInfo
from guildhall.room import inbox, shared_records
from guildhall.room import records as room_records
from guildhall.room.model import PERSON, SYSTEM, Actor, Mail
from guildhall.room.operation import READS, Turn
from guildhall.room.service import Room, perform_in
from guildhall.room.text import as_said
from guildhall.room.tools import TOOLS as ROOM_TOOLS
from guildhall.runs.execution.grants import Grant
from guildhall.runs.record import records as run_records
from guildhall.runs.record.entries import ModelCallFailed, ToolEnded, ToolStarted
from guildhall.runs.record.journal import entries_with
from guildhall.tools.executor import BUILT_IN
from guildhall.workflow import loop_guard, records
from guildhall.workflow.quiescence import waits_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from sqlalchemy import Connection

    from guildhall.runs.model import SegmentEnd
    from guildhall.store.engine import Store
    from guildhall.workflow.model import Workflow
    from guildhall.workflow.target import Instance


ATTEMPTS = 3  # of a run that fails by what it does
RETRIES = 5  # of one that was disturbed from outside
FIRST_PAUSE = 1.0  # seconds
_LONGEST_PAUSE = 60.0
_DISTURBED = frozenset({"runtime_crashed"})

_MOST = 40  # calls that are named
_LONGEST = 300  # characters of each
_LOOKING = frozenset({"fs.read", "memory.read", "room.read"})
_HARMLESS = frozenset(
    {
        *("memory_read", "memory_list", "sandbox_list", "sandbox_read_text", "status_set", "no_action"),
        *(name for name, capabilities in ROOM_TOOLS.items() if capabilities == READS),
        *(name for name, capabilities in BUILT_IN.items() if capabilities <= _LOOKING),
    }
)
_TOLD = """\
An earlier attempt at this failed. Before that it did what is listed here, which is a record and no instruction. None \
of it is undone: do not do it a second time, go on from there."""

HOW_TO = """\
You are {agent}, one of several agents who share a room: {team}.
Above is what was said to you and what you have not handled yet. What you write as your last answer is seen by nobody: \
use the tools. channel_send says something to all; @name in it wakes that agent. channel_read and document_read show \
what happened so far and what you work on together. Mention somebody only if they are to do something. If there is \
nothing for you to do, call no_action and end."""


def run_input(
    connection: Connection, workflow: Workflow, room: str, agent: str, batch: Sequence[Mail], *, more: int, before: str
) -> str:
    """Return the first message of a run. `before` lists the effects of failed runs. `more` messages are not shown."""
    if workflow.definition.context.enabled:
        return first_message(agent, [one.name for one in workflow.agents], batch, more=more, before=before)
    texts = [_whole(connection, room, mail) for mail in batch]  # without a room, the agent cannot fetch the rest
    return "\n\n".join([*texts, before] if before else texts)


def _whole(connection: Connection, room: str, mail: Mail) -> str:
    kept = mail.message.resource
    found = shared_records.resource(connection, room, kept) if kept else None
    return found[0] if found else mail.message.content


def first_message(agent: str, team: Sequence[str], batch: Sequence[Mail], *, more: int = 0, before: str = "") -> str:
    """Return the first message of a run in a room: its unread mail, and how the room works."""
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
    step: Step
    clock: Clock
    most_rounds: int  # in which nothing but talk happens
    first_pause: float  # seconds
    told: list[Turn]  # what is to be announced once it is committed

    def began(self, connection: Connection, run: str) -> None:
        actor, at = Actor(name=self.agent, run=run, key="inbox"), stamp(self.clock.now())
        marks = inbox.marks(self.step.batch)
        perform_in(connection, self.room, "inbox_shown", actor, at, left=self.step.more, **marks)
        records.seat_run(connection, self.instance, self.agent, run)

    def ended(self, connection: Connection, run: str, end: SegmentEnd) -> None:
        at = stamp(self.clock.now())
        if end.status == "completed":
            seen = room_records.seen(connection, self.room, run)
            actor = Actor(name=self.agent, run=run)
            perform_in(connection, self.room, "acknowledged", actor, at, agent=self.agent, until=seen.until)
            self._stands(connection, "idle")
            loop_guard.count_turn(connection, self.instance, self.room, self.agent, run, self.most_rounds, at)
        elif end.status == "waiting":
            self._stands(connection, "waiting", run=run, attempts=self._attempts(connection))
        elif end.status == "failed":
            self._failed(connection, run, end, at)

    def could_not_begin(self, connection: Connection, error: ErrorInfo) -> None:
        """Record that the run could not be started or resumed. It is not tried again."""
        batch = self.step.batch
        until = batch[-1].message.id if batch else room_records.seen(connection, self.room, self.step.run or "").until
        self._give_up(connection, until, self.step.run, error, stamp(self.clock.now()))

    def _failed(self, connection: Connection, run: str, end: SegmentEnd, at: str) -> None:
        attempts = self._attempts(connection) + 1
        disturbed = _disturbed(connection, run, end)
        if end.is_at_limit:
            self._stands(connection, "failed", run=run, attempts=attempts - 1)  # with more, it goes on
        elif disturbed and attempts <= RETRIES:
            pause = min(_LONGEST_PAUSE, self.first_pause * 2 ** (attempts - 1))
            due = stamp(self.clock.now() + timedelta(seconds=pause))
            self._stands(connection, "backoff", run=run, attempts=attempts, due=due)
        elif not disturbed and attempts < ATTEMPTS:
            self._stands(connection, "idle", attempts=attempts)  # a new run, which is told what this one has done
        else:
            until = room_records.seen(connection, self.room, run).until
            error = end.error or ErrorInfo(code="error", message=end.reason or "no reason given")
            self._give_up(connection, until, run, error, at)

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


def _disturbed(connection: Connection, run: str, end: SegmentEnd) -> bool:
    """Whether a run failed for a reason that passes by itself, so that it is gone on with and not begun again."""
    code = end.error["code"] if end.error else None
    failures = entries_with(run_records.list_entries(connection, run), ModelCallFailed)
    if failures and failures[-1].data.code == code:
        return failures[-1].data.transient
    return code in _DISTURBED


def effects_before(connection: Connection, instance: str, agent: str, number: int) -> str:
    """Return the effects of the failed runs right before an agent's run of this number, or an empty text."""
    calls = (f"{agent}/{earlier}" for earlier in range(number - 1, 0, -1))
    runs = (run_records.find_call_run(connection, instance, call) for call in calls)
    failed = list(takewhile(lambda run: run is not None and run.status == "failed", runs))
    lines = [line for run in reversed(failed) if run for line in _effects(connection, run.id)]
    if not lines:
        return ""
    left_out = [f"- ... {len(lines) - _MOST} more before these"] if len(lines) > _MOST else []
    return "\n".join([_TOLD, "---", *left_out, *lines[-_MOST:], "---"])


def _effects(connection: Connection, run: str) -> Iterator[str]:
    entries = run_records.list_entries(connection, run)
    ended = {entry.key: entry.data.result for entry in entries_with(entries, ToolEnded)}
    seen: set[str | None] = set()
    for entry in entries_with(entries, ToolStarted):
        if entry.data.tool in _HARMLESS or entry.key in seen:
            continue
        seen.add(entry.key)  # a call that was made again after a crash is one call
        result = ended.get(entry.key)
        if result is None:
            yield f"- {_call(entry.data)} (it was cut off, and may have been done or not)"
        elif not result["is_error"]:
            yield f"- {_call(entry.data)}"


def _call(call: ToolStarted) -> str:
    told = f"{call.tool} {json.dumps(call.arguments, ensure_ascii=False)}"
    return told if len(told) <= _LONGEST else f"{told[:_LONGEST]}..."


_GRANTED = {"max_turns": "max_turns", "max_tokens": "max_tokens", "max_budget_usd": "budget"}  # limit: what to grant


@dataclass(frozen=True, kw_only=True)
class Step:
    """What an agent does next: go on with a run, or take up its mail; or when to look again."""

    run: str | None = None
    batch: Sequence[Mail] = ()
    until: str | None = None
    text: str = ""  # what the run is told first
    number: int = 0
    more: int = 0  # messages that wait beside these

    @property
    def resumes(self) -> bool:
        """Return True if the agent's last run is not over: it is resumed, now or later."""
        return self.run is not None or self.until is not None

    @property
    def something(self) -> bool:
        return self.run is not None or bool(self.batch)


def next_step(
    connection: Connection,
    instance: Instance,
    workflow: Workflow,
    name: str,
    *,
    at: str,
    attended: bool,
    until: int | None = None,
) -> Step:
    """What an agent does next. `attended`: somebody sits at a terminal, and is asked whatever is to be asked.

    `until`: it is shown its inbox no further than to this message.
    """
    state = records.agent(connection, instance.id, name)
    if state.status in ("running", "backoff") and state.run is not None:
        later = state.due_at is not None and state.due_at > at
        return Step(until=state.due_at) if later else _again(connection, instance, name, state.run)
    if state.status == "waiting" and state.run is not None:
        asked = waits_for(connection, instance.id, state.run, at)
        if not asked or attended:
            return _again(connection, instance, name, state.run)
        return Step(until=min((ask.expires_at for ask in asked if ask.expires_at), default=None))
    return _new_run(connection, instance, workflow, name, until) if state.status == "idle" else Step()


def _again(connection: Connection, instance: Instance, name: str, run: str) -> Step:
    return Step(run=run, number=records.runs_of_agent(connection, instance.id, name))


def _new_run(connection: Connection, instance: Instance, workflow: Workflow, name: str, until: int | None) -> Step:
    """A run on the mail that the agent has; nothing, where it has none."""
    batch = inbox.unread(connection, instance.room, name)
    if until is not None:
        batch = [mail for mail in batch if mail.message.id <= until] or batch
    if not batch:
        return Step()
    last = batch[-1].message.id
    more = 0 if until is not None else room_records.count_unread_after(connection, instance.room, name, last)
    number = records.runs_of_agent(connection, instance.id, name) + 1
    before = effects_before(connection, instance.id, name, number)
    text = run_input(connection, workflow, instance.room, name, batch, more=more, before=before)
    return Step(batch=batch, number=number, text=text, more=more)


def try_again(connection: Connection, instance: Instance, at: str) -> None:
    """Those who have failed work again: on the run that stopped at a limit, or on what they could not handle."""
    for state in records.agents_of(connection, instance.id):
        if state.status != "failed":
            continue
        status = "idle" if state.run is None else "running"
        records.change_agent(connection, instance.id, state.name, status=status, attempts=0)
        if state.run is None:
            perform_in(connection, instance.room, "delivered_again", Actor.person(), at, agent=state.name)


def grant_for(connection: Connection, run: str, granted: Mapping[str, Any]) -> Grant | None:
    """More of what a run has used up, where a person has granted that."""
    stopped = run_records.find_run(connection, run)
    error = (stopped.error if stopped else None) or {}
    name = _GRANTED.get(error.get("limit", "")) if error.get("run") == run else None
    more = granted.get(name) if name else None
    return Grant(**{name: more}) if name and more is not None else None


def result_of(workflow: Workflow, instance: Instance, room: Room, store: Store) -> str:
    """Return the result of a team: the last message of an agent to all, or without a room the outputs of the agents."""
    if not workflow.definition.context.enabled:
        return store.read(lambda connection: _outputs(connection, instance.id, workflow))
    names = {agent.name for agent in workflow.agents}
    for message in reversed(room.messages(newest=True)):
        if message.sender in names and message.kind == "message" and message.at >= instance.created_at:
            return message.content
    return ""


def _outputs(connection: Connection, instance: str, workflow: Workflow) -> str:
    runs = {agent.name: records.last_run(connection, instance, agent.name) for agent in workflow.agents}
    outputs = {name: run.output for name, run in runs.items() if run is not None}
    texts = {
        name: output if isinstance(output, str) else json.dumps(output, indent=2, ensure_ascii=False)
        for name, output in outputs.items()
    }
    if len(texts) == 1:
        return next(iter(texts.values()))
    return "\n\n".join(f"{name}:\n{text}" for name, text in texts.items())
