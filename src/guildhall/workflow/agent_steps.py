"""Next steps of agents: derives from the database which run an agent starts or resumes, or when to check again.

A step resumes an unfinished run, or starts a run on the unread mail. The first message of a run after failed runs
lists the tool calls that these runs made. Also grants more of an exhausted limit and reactivates failed agents when the
user resumes a workflow.
Does not execute steps (`scheduler.py`) and does not record how a run ends (`agent_turn.py`).

Invariant: a step depends on the database alone, so a killed team continues at its last recorded state.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from guildhall.room import inbox
from guildhall.room import records as room_records
from guildhall.room.model import Actor, Mail
from guildhall.room.operation import READS
from guildhall.room.service import perform_in
from guildhall.room.tools import TOOLS as ROOM_TOOLS
from guildhall.runs.execution.grants import Grant
from guildhall.runs.record import records as run_records
from guildhall.runs.record.entries import ToolEnded, ToolStarted
from guildhall.runs.record.journal import entries_with
from guildhall.tools.executor import BUILT_IN
from guildhall.workflow import records
from guildhall.workflow.agent_turn import alone_message, first_message
from guildhall.workflow.quiescence import waits_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from sqlalchemy import Connection

    from guildhall.runs.model import Run
    from guildhall.workflow.model import Workflow
    from guildhall.workflow.target import Instance


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


def effects_before(connection: Connection, instance: str, agent: str, number: int) -> str:
    """What was done before an agent's run of this number by those right before it that have failed; empty: nothing."""
    failed = _failed_runs(connection, instance, agent, number)
    lines = [line for run in failed for line in _effects(connection, run.id)]
    if not lines:
        return ""
    left_out = [f"- ... {len(lines) - _MOST} more before these"] if len(lines) > _MOST else []
    return "\n".join([_TOLD, "---", *left_out, *lines[-_MOST:], "---"])


def _failed_runs(connection: Connection, instance: str, agent: str, number: int) -> list[Run]:
    """The runs right before it that have failed, oldest first."""
    found: list[Run] = []
    for earlier in range(number - 1, 0, -1):
        run = run_records.run_of_call(connection, instance, f"{agent}/{earlier}")
        if run is None or run.status != "failed":
            break
        found.insert(0, run)
    return found


def _effects(connection: Connection, run: str) -> Iterator[str]:
    entries = run_records.entries(connection, run)
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
    if workflow.definition.context.enabled:
        names = [one.name for one in workflow.agents]
        text = first_message(name, names, batch, more=more, before=before)
    else:
        text = alone_message(connection, instance.room, batch, before=before)
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
