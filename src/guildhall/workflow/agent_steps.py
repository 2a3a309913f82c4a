"""Turns of agents: derive the next step of an agent from the database, and record the start and end of its run.

A step resumes an unfinished run, or starts a run on the unread mail. A run that failed for a transient reason is
resumed after a pause, up to 5 times in mode `run` and without a limit in mode `start`. Other failures start a new run,
up to 3 attempts, whose input lists the tool calls of the failed runs. After that, the mail becomes dead letters.
Does not execute steps (`team.py`).

Invariant: a step depends on the database alone, so a killed team continues at its last recorded state. The end of a
run and the status of the mail that it was shown change in one transaction.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from guildhall.core.clock import Clock, parse_stamp, stamp
from guildhall.core.errors import ErrorInfo
from guildhall.room import document_records, inbox
from guildhall.room import records as room_records
from guildhall.room.model import ALL, PERSON, SYSTEM, Actor, Mail
from guildhall.room.operation import READS, Turn
from guildhall.room.service import Room, perform_in
from guildhall.room.text import escape_headers
from guildhall.room.tools import TOOLS as ROOM_TOOLS
from guildhall.room.tools import room_tools
from guildhall.runs.execution.preparation import Grant
from guildhall.runs.record import records as run_records
from guildhall.runs.record.entries import ModelCallFailed, ToolEnded, ToolStarted
from guildhall.runs.record.journal import entries_with
from guildhall.tools.call_router import BUILT_IN
from guildhall.workflow import loop_guard, records
from guildhall.workflow.quiescence import blocking_asks

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from guildhall.runs.model import Run, SegmentEnd
    from guildhall.store.engine import Store
    from guildhall.tools.model import Tool
    from guildhall.workflow.instance import Instance
    from guildhall.workflow.model import Workflow

MAX_ATTEMPTS = 3  # runs on the same mail, if the failure is not transient
MAX_RETRIES = 5  # resumes after transient failures, in mode `run`
FIRST_PAUSE_S = 1.0
_MAX_PAUSE_S = 300.0
_TRANSIENT_CODES = frozenset({"runtime_crashed"})

_MAX_LISTED_CALLS = 40
_MAX_CALL_CHARS = 300
_READ_CAPABILITIES = frozenset({"fs.read", "memory.read", "room.read"})
_HARMLESS_TOOLS = frozenset(
    {
        *("memory_read", "memory_list", "sandbox_list", "sandbox_read_text", "status_set", "no_action"),
        *(name for name, capabilities in ROOM_TOOLS.items() if capabilities == READS),
        *(name for name, capabilities in BUILT_IN.items() if capabilities <= _READ_CAPABILITIES),
    }
)
_EFFECTS_INTRO = """\
An earlier attempt at this task failed after these tool calls. The list is a record, not an instruction. The effects \
of the calls remain: do not repeat them, continue from there."""

TEAM_INSTRUCTIONS = """\
You are {agent}. The other agents of your team:
{team}
Do your own part first, with your own tools. To hand work to another agent, send it a message, for example \
channel_send(to="{other}", message="Please check the result."). It starts working at once, and its reply is delivered \
to you later, so do not wait for it.
Your final answer goes to the sender of the message, unless you have sent a message. If no action is needed, call \
no_action."""
SOLO_INSTRUCTIONS = "Your final answer goes to the user. If no action is needed, call no_action."

_DOCUMENT_TOOLS = ("document_read", "document_write", "document_append", "document_list", "document_suggest")
_PROPOSAL_TOOLS = ("proposal_vote", "proposal_status")


@dataclass(frozen=True, kw_only=True)
class RoomToolSet:
    """The room tools of a run: the tools, the tools that complete the run, and the tools that are shown on demand."""

    tools: tuple[Tool, ...] = ()
    final: frozenset[str] = frozenset()
    deferred: frozenset[str] = frozenset()
    loader: str | None = None


def room_tool_set(workflow: Workflow, agent: str, kinds: Collection[str]) -> RoomToolSet:
    """Return the room tools of an agent's run. `kinds` are the kinds of the messages that the run reads."""
    context = workflow.definition.context
    if not context.enabled:
        return RoomToolSet()
    others = [other.name for other in workflow.agents if other.name != agent]
    has_votes = "proposal" in kinds
    shown = {"channel_send", "no_action", "resource_read", "more_tools"}
    shown.update(("channel_read",) if others else ())
    shown.update(_DOCUMENT_TOOLS if context.uses_documents or (others and context.document_owner is None) else ())
    shown.update(_PROPOSAL_TOOLS if has_votes else ())
    return RoomToolSet(
        tools=room_tools(recipients=[*others, PERSON, *([ALL] if others else [])]),
        final=frozenset({"no_action"} | ({"proposal_vote"} if has_votes and len({*kinds}) == 1 else set())),
        deferred=frozenset(ROOM_TOOLS) - shown,
        loader="more_tools",
    )


def run_input(
    connection: Connection, workflow: Workflow, room: str, agent: str, batch: Sequence[Mail], *, more: int, effects: str
) -> str:
    """Return the first message of a run. `effects` lists the effects of failed runs. `more` messages are not shown."""
    if workflow.definition.context.enabled:
        team = {other.name: other.worker.description for other in workflow.agents if other.name != agent}
        return first_message(agent, team, batch, more=more, effects=effects)
    # Without a room, the agent cannot fetch the rest.
    texts = [document_records.read_whole(connection, room, mail.message).content for mail in batch]
    return "\n\n".join([*texts, effects] if effects else texts)


def first_message(
    agent: str, team: Mapping[str, str | None], batch: Sequence[Mail], *, more: int = 0, effects: str = ""
) -> str:
    """Return the first message of a run in a room: its unread mail, its team, and the effects of failed runs."""
    lines = [f"Your inbox ({len(batch)} unread):" if batch else "Your inbox is empty."]
    for mail in batch:
        message = mail.message
        lines += [f"--- #{message.id} from {message.sender}, {mail.urgency} priority", escape_headers(message.content)]
    if more:
        lines.append(f"--- {more} more unread messages will be delivered to you later.")
    if team:
        names = "\n".join(f"- {name}: {text}" if text else f"- {name}" for name, text in team.items())
        lines += ["---", "", TEAM_INSTRUCTIONS.format(agent=agent, team=names, other=next(iter(team)))]
    else:
        lines += ["---", "", SOLO_INSTRUCTIONS]
    if effects:
        lines += ["", effects]
    return "\n".join(lines)


@dataclass(frozen=True, kw_only=True)
class AgentTurn:
    """One turn of an agent: records the start and the end of its run."""

    instance: str
    room: str
    agent: str
    step: Step
    clock: Clock
    max_rounds: int  # limit of rounds without progress
    first_pause_s: float
    has_room: bool
    keeps_trying: bool  # True in mode `start`
    room_turns: list[Turn]  # to announce after the commit

    def record_start(self, connection: Connection, run: str) -> None:
        actor, at = Actor(name=self.agent, run=run, key="inbox"), stamp(self.clock.now())
        shown = inbox.describe_batch(self.step.batch)
        perform_in(connection, self.room, "inbox_shown", actor, at, left=self.step.more, **shown)
        records.assign_run(connection, self.instance, self.agent, run)

    def record_end(self, connection: Connection, run: str, end: SegmentEnd) -> None:
        at = stamp(self.clock.now())
        if end.status == "completed":
            until = room_records.shown_inbox(connection, self.room, run).last_message_number
            actor = Actor(name=self.agent, run=run)
            self._deliver_answer(connection, run, end.output, at)
            perform_in(connection, self.room, "acknowledge", actor, at, agent=self.agent, until=until)
            self._set_state(connection, "idle")
            loop_guard.count_turn(connection, self.instance, self.room, self.agent, run, self.max_rounds, at)
        elif end.status == "waiting":
            self._set_state(connection, "waiting", run=run, attempts=self._attempts(connection))
        elif end.status == "failed":
            self._record_failure(connection, run, end, at)

    def _deliver_answer(self, connection: Connection, run: str, output: Any, at: str) -> None:
        text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
        if self.has_room and output is not None and text.strip():
            actor = Actor(name=self.agent, run=run, key="answer")
            performed = perform_in(connection, self.room, "post_answer", actor, at, text=text)
            if performed.turn is not None:
                self.room_turns.append(performed.turn)

    def retry_text(self, connection: Connection, run: Run) -> str | None:
        """Return a line about the next attempt after a failed run, or None if no attempt follows."""
        state = records.get_agent(connection, self.instance, self.agent)
        reason = (run.error or {}).get("message") or run.reason or "no reason given"
        if run.status != "failed" or state.status not in ("backoff", "idle") or not state.attempts:
            return None
        if state.due_at is None:
            return f"{self.agent} failed: {reason}. Attempt {state.attempts + 1} of {MAX_ATTEMPTS} starts."
        pause_s = (parse_stamp(state.due_at) - self.clock.now()).total_seconds()
        return f"{self.agent} failed: {reason}. Retry in {max(0.0, pause_s):.3g} s."

    def record_start_failure(self, connection: Connection, error: ErrorInfo) -> None:
        """Record that the run could not be started or resumed. The agent does not retry."""
        batch = self.step.batch
        shown = room_records.shown_inbox(connection, self.room, self.step.run or "")
        until = batch[-1].message.id if batch else shown.last_message_number
        self._give_up(connection, until, self.step.run, error, stamp(self.clock.now()))

    def _record_failure(self, connection: Connection, run: str, end: SegmentEnd, at: str) -> None:
        attempts = self._attempts(connection) + 1
        is_transient = _is_transient(connection, run, end)
        if end.is_at_limit:
            self._set_state(connection, "failed", run=run, attempts=attempts - 1)  # a grant resumes it
        elif is_transient and (self.keeps_trying or attempts <= MAX_RETRIES):
            pause_s = min(_MAX_PAUSE_S, self.first_pause_s * 2 ** min(attempts - 1, 30))
            due_at = stamp(self.clock.now() + timedelta(seconds=pause_s))
            self._set_state(connection, "backoff", run=run, attempts=attempts, due_at=due_at)
        elif not is_transient and attempts < MAX_ATTEMPTS:
            self._set_state(connection, "idle", attempts=attempts)  # a new run lists the effects of this one
        else:
            until = room_records.shown_inbox(connection, self.room, run).last_message_number
            error = end.error or ErrorInfo(code="error", message=end.reason or "no reason given")
            self._give_up(connection, until, run, error, at)

    def _give_up(self, connection: Connection, until: int, run: str | None, error: ErrorInfo, at: str) -> None:
        """Turn the mail of the run into dead letters, and notify the senders and the user."""
        self._set_state(connection, "failed", attempts=self._attempts(connection) + 1)
        records.add_agent_note(connection, self.instance, self.agent, error=dict(error))
        actor = Actor.system(run=run)
        dead_mail = perform_in(connection, self.room, "mark_dead", actor, at, agent=self.agent, until=until).result
        if not dead_mail:
            return
        letters = room_records.mail_by_status(connection, self.room, "dead", self.agent)
        dead = [mail for _, mail in letters if mail.message.id in dead_mail["messages"]]
        senders = {mail.message.sender for mail in dead} - {SYSTEM, self.agent}
        numbers = ", ".join(f"#{mail.message.id}" for mail in dead)
        text = f"{self.agent} could not handle {numbers} and gave up: {error['message']}"
        hops = max(mail.message.hops for mail in dead) + 1
        to = sorted(senders | {PERSON})
        performed = perform_in(connection, self.room, "post_notice", actor, at, text=text, to=to, hops=hops)
        if performed.turn is not None:
            self.room_turns.append(performed.turn)

    def _attempts(self, connection: Connection) -> int:
        return records.get_agent(connection, self.instance, self.agent).attempts

    def _set_state(self, connection: Connection, status: str, **columns: Any) -> None:
        """Set the status of the agent. Clear its run, attempts and due time unless `columns` has them."""
        values = {"status": status, "run": None, "attempts": 0, "due_at": None, **columns}
        records.change_agent(connection, self.instance, self.agent, **values)


def _is_transient(connection: Connection, run: str, end: SegmentEnd) -> bool:
    """Return True if a run failed for a transient reason, so that it is resumed and not started over."""
    code = end.error["code"] if end.error else None
    failures = entries_with(run_records.list_entries(connection, run), ModelCallFailed)
    if failures and failures[-1].data.code == code:
        return failures[-1].data.transient
    return code in _TRANSIENT_CODES


def earlier_effects(connection: Connection, instance: str, agent: str, number: int) -> str:
    """Return a list of the effects of the failed runs directly before an agent's n-th run, or an empty text."""
    calls = (f"{agent}/{earlier}" for earlier in range(number - 1, 0, -1))
    runs = (run_records.find_call_run(connection, instance, call) for call in calls)
    failed = list(takewhile(lambda run: run is not None and run.status == "failed", runs))
    lines = [line for run in reversed(failed) if run for line in _effects(connection, run.id)]
    if not lines:
        return ""
    omitted = [f"- ... {len(lines) - _MAX_LISTED_CALLS} earlier calls"] if len(lines) > _MAX_LISTED_CALLS else []
    return "\n".join([_EFFECTS_INTRO, "---", *omitted, *lines[-_MAX_LISTED_CALLS:], "---"])


def _effects(connection: Connection, run: str) -> Iterator[str]:
    entries = run_records.list_entries(connection, run)
    ended = {entry.key: entry.data.result for entry in entries_with(entries, ToolEnded)}
    seen: set[str | None] = set()
    for entry in entries_with(entries, ToolStarted):
        if entry.data.tool in _HARMLESS_TOOLS or entry.key in seen:
            continue
        seen.add(entry.key)  # a repetition after a crash is the same call
        result = ended.get(entry.key)
        if result is None:
            yield f"- {_call_text(entry.data)} (interrupted: it may or may not have taken effect)"
        elif not result["is_error"]:
            yield f"- {_call_text(entry.data)}"


def _call_text(call: ToolStarted) -> str:
    text = f"{call.tool} {json.dumps(call.arguments, ensure_ascii=False)}"
    return text if len(text) <= _MAX_CALL_CHARS else f"{text[:_MAX_CALL_CHARS]}..."


_GRANT_FIELDS = {"max_turns": "max_turns", "max_tokens": "max_tokens", "max_budget_usd": "budget"}


@dataclass(frozen=True, kw_only=True)
class Step:
    """The next step of an agent: resume a run, start a run on its mail, or wait until `due_at`."""

    run: str | None = None
    batch: Sequence[Mail] = ()
    due_at: str | None = None
    text: str = ""  # the first message of the run
    kinds: frozenset[str] = frozenset()  # kinds of the messages that the run reads
    number: int = 0
    more: int = 0  # unread messages that are not in the batch

    @property
    def resumes(self) -> bool:
        """Return True if the agent's last run is not over: it is resumed, now or later."""
        return self.run is not None or self.due_at is not None

    @property
    def has_work(self) -> bool:
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
    """Return the next step of an agent. `attended` means that a user at a terminal answers asks at once.

    `until` limits the inbox to the messages up to this one.
    """
    state = records.get_agent(connection, instance.id, name)
    if state.status in ("running", "backoff") and state.run is not None:
        is_later = state.due_at is not None and state.due_at > at
        return Step(due_at=state.due_at) if is_later else _resume_step(connection, instance, name, state.run)
    if state.status == "waiting" and state.run is not None:
        asks = blocking_asks(connection, instance.id, state.run, at)
        if not asks or attended:
            return _resume_step(connection, instance, name, state.run)
        return Step(due_at=min((ask.expires_at for ask in asks if ask.expires_at), default=None))
    return _new_run_step(connection, instance, workflow, name, until) if state.status == "idle" else Step()


def _resume_step(connection: Connection, instance: Instance, name: str, run: str) -> Step:
    kinds = frozenset(message.kind for message in room_records.messages_read(connection, instance.room, run))
    return Step(run=run, number=records.count_runs(connection, instance.id, name), kinds=kinds)


def _new_run_step(connection: Connection, instance: Instance, workflow: Workflow, name: str, until: int | None) -> Step:
    """Return the step that starts a run on the unread mail, or an empty step if the agent has none."""
    batch = inbox.unread_batch(connection, instance.room, name)
    if until is not None:
        batch = [mail for mail in batch if mail.message.id <= until] or batch
    if not batch:
        return Step()
    unread_count = room_records.count_unread(connection, instance.room).get(name, 0)
    more = 0 if until is not None else unread_count - len(batch)
    number = records.count_runs(connection, instance.id, name) + 1
    effects = earlier_effects(connection, instance.id, name, number)
    text = run_input(connection, workflow, instance.room, name, batch, more=more, effects=effects)
    kinds = frozenset(mail.message.kind for mail in batch)
    return Step(batch=batch, number=number, text=text, more=more, kinds=kinds)


def retry_failed(connection: Connection, instance: Instance, at: str) -> None:
    """Restart the failed agents: resume a run that reached a limit, or deliver the dead letters again."""
    for state in records.list_agents(connection, instance.id):
        if state.status != "failed":
            continue
        status = "idle" if state.run is None else "running"
        records.change_agent(connection, instance.id, state.name, status=status, attempts=0)
        if state.run is None:
            perform_in(connection, instance.room, "redeliver", Actor.person(), at, agent=state.name)


def grant_for(connection: Connection, run: str, granted: Mapping[str, Any]) -> Grant | None:
    """Return the part of the user's grant for the limit that a run has reached, or None."""
    stopped = run_records.find_run(connection, run)
    error = (stopped.error if stopped else None) or {}
    name = _GRANT_FIELDS.get(error.get("limit", "")) if error.get("run") == run else None
    amount = granted.get(name) if name else None
    return Grant(**{name: amount}) if name and amount is not None else None


def team_result(workflow: Workflow, instance: Instance, room: Room, store: Store) -> str:
    """Return the result of a team: the last message to the user, else the last message of an agent.

    Without a room, return the outputs of the agents.
    """
    if not workflow.definition.context.enabled:
        return store.read(lambda connection: _agent_outputs(connection, instance.id, workflow))
    names = {agent.name for agent in workflow.agents}
    messages = [
        message
        for message in room.list_messages(newest=True)
        if message.sender in names and message.kind in ("message", "answer") and message.at >= instance.created_at
    ]
    to_user = [message for message in messages if PERSON in message.mentions]
    if not messages:
        return ""
    last = (to_user or messages)[-1]
    return store.read(lambda connection: document_records.read_whole(connection, room.id, last)).content


def _agent_outputs(connection: Connection, instance: str, workflow: Workflow) -> str:
    runs = {agent.name: records.last_run(connection, instance, agent.name) for agent in workflow.agents}
    outputs = {name: run.output for name, run in runs.items() if run is not None}
    texts = {
        name: output if isinstance(output, str) else json.dumps(output, indent=2, ensure_ascii=False)
        for name, output in outputs.items()
    }
    if len(texts) == 1:
        return next(iter(texts.values()))
    return "\n\n".join(f"{name}:\n{text}" for name, text in texts.items())
