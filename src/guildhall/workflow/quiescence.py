"""Quiescence detection: determines in one transaction if any agent of a team can make progress.

An agent can move if it is running, is in backoff, has unread mail, or waits for an ask that is closed. A quiet team is
completed, or is stopped by its worst agent: failed, at a limit, or waiting for the user. Open proposals of a quiet team
end with the votes that they have.
Does not end the team (`scheduler.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from guildhall.core.errors import ErrorInfo, LimitReached, RuntimeFailed
from guildhall.room import records as room_records
from guildhall.room.model import Actor
from guildhall.room.service import perform_in
from guildhall.runs.model import Ask, SegmentEnd
from guildhall.runs.record import records as run_records
from guildhall.workflow import records

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import Connection

    from guildhall.room.operation import Turn
    from guildhall.workflow.target import AgentState, Instance, Phase

_WAITING = SegmentEnd.waiting("ask")


@dataclass(frozen=True, kw_only=True)
class Standing:
    """How a team stands: whether somebody can move, and if not, what keeps it from being done."""

    busy: bool
    end_of_segment: SegmentEnd | None = None  # None: nothing, it is done
    turn: Turn | None = None  # what is to be announced

    @property
    def phase(self) -> Phase:
        if self.end_of_segment is None:
            return "done"
        return "paused" if self.end_of_segment.status == "waiting" else "failed"


def look(
    connection: Connection, instance: Instance, at: str, *, attended: bool = False, settle: bool = False
) -> Standing:
    """How a team stands now. `attended`: somebody sits at a terminal, and is asked whatever is to be asked.

    `settle`: proposals on which nobody will vote any more end with the votes they have.
    """
    agents = records.agents_of(connection, instance.id)
    mail = room_records.count_unread(connection, instance.room)
    if any(_can_move(connection, instance.id, agent, mail, at, attended=attended) for agent in agents):
        return Standing(busy=True)
    held = bool(room_records.in_status(connection, instance.room, "held"))
    if held and (attended or not _asked_about(connection, instance.id)):
        return Standing(busy=True)  # whoever asks the person, or takes the answer, is at it
    if room_records.open_ones(connection, instance.room):
        if not settle:
            return Standing(busy=False)
        settled = perform_in(connection, instance.room, "settle", Actor.system(run=instance.id), at)
        return Standing(busy=True, turn=settled.turn)
    worst = _worst(connection, instance.id, agents)
    return Standing(busy=False, end_of_segment=worst or (_WAITING if held else None))


def movable(connection: Connection, instance: Instance, at: str, *, attended: bool) -> frozenset[str]:
    """Who could do something now, and does not."""
    mail = room_records.count_unread(connection, instance.room)
    resting = [agent for agent in records.agents_of(connection, instance.id) if agent.status in ("idle", "waiting")]
    can = (agent for agent in resting if _can_move(connection, instance.id, agent, mail, at, attended=attended))
    return frozenset(agent.name for agent in can)


def waits_for(connection: Connection, instance: str, run: str, at: str) -> list[Ask]:
    """What keeps an agent's run from going on: what it asks itself, or what is asked about the dollars of all."""
    asks = run_records.list_asks(connection, run=instance, status="open")
    below = {run, *(one.id for one in run_records.list_descendants(connection, run))}
    mine = [ask for ask in asks if ask.run in below or (ask.run == instance and ask.kind == "limit")]
    return [ask for ask in mine if ask.expires_at is None or ask.expires_at > at]


def who_waits_for(connection: Connection, instance: str, ask: Ask) -> frozenset[str]:
    """The agents that can go on once an ask is open no more."""
    runs = {state.name: state.run for state in records.agents_of(connection, instance) if state.run is not None}
    if ask.run == instance:  # it was about all of them
        return frozenset(runs)
    below = run_records.list_descendants
    return frozenset(
        name for name, run in runs.items() if ask.run in (run, *(one.id for one in below(connection, run)))
    )


def _asked_about(connection: Connection, instance: str) -> bool:
    """Whether a person is being asked about what is held back."""
    asks = run_records.list_asks(connection, run=instance, status="open")
    return any(ask.kind == "loop" for ask in asks)


def _can_move(
    connection: Connection, instance: str, agent: AgentState, mail: Mapping[str, int], at: str, *, attended: bool
) -> bool:
    if agent.status in ("running", "backoff"):
        return True
    if agent.status == "waiting":
        return agent.run is not None and (attended or not waits_for(connection, instance, agent.run, at))
    return agent.status == "idle" and mail.get(agent.name, 0) > 0


def _worst(connection: Connection, instance: str, agents: list[AgentState]) -> SegmentEnd | None:
    """How the workflow ends by the worst of its agents: one that failed, one at a limit, one that waits."""
    failed = [agent for agent in agents if agent.status == "failed"]
    if lost := [agent for agent in failed if agent.run is None]:
        return SegmentEnd(status="failed", reason="agent failed", error=_failure(connection, instance, lost))
    if failed:
        return SegmentEnd(status="failed", reason="limit", error=_at_limit(connection, instance, failed[0]))
    return _WAITING if any(agent.status == "waiting" for agent in agents) else None


def _failure(connection: Connection, instance: str, lost: list[AgentState]) -> ErrorInfo:
    """What is told of agents that have given up: which, why, and what to do then."""
    errors: dict[str, dict[str, Any]] = {}
    for agent in lost:
        errors[agent.name] = records.notes(connection, instance, agent.name).get("error") or {}
    said = [f"{name}: {error.get('message') or 'it failed'}" for name, error in errors.items()]
    hint = f"Put right what it says; what they were told is kept, and is delivered again by: guild resume {instance}"
    first = next(iter(errors.values()))
    told = {**first, "code": RuntimeFailed.code, "message": "; ".join(said), "hint": hint, "agents": list(errors)}
    return cast("ErrorInfo", told)


def _at_limit(connection: Connection, instance: str, agent: AgentState) -> ErrorInfo:
    found = run_records.find_run(connection, agent.run or "")
    error = (found.error if found else None) or ErrorInfo(code=LimitReached.code, message="a limit was reached")
    return {**error, "message": f"{agent.name}: {error['message']}", "agents": [agent.name]}
