"""Quiescence detection: determines in one transaction if any agent of a team can make progress.

An agent can move if it is running, is in backoff, has unread mail, or waits for an ask that is closed. An idle team is
completed, or stops because of its worst agent: failed, at a limit, or waiting for the user.
Does not end the team (`team.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
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
    from sqlalchemy import Connection

    from guildhall.room.operation import Turn
    from guildhall.workflow.instance import AgentState, Instance, Phase

_WAITING = SegmentEnd.waiting("ask")


@dataclass(frozen=True, kw_only=True)
class TeamState:
    """The state of a team: busy, or idle with the reason of the stop."""

    is_busy: bool
    end_of_segment: SegmentEnd | None = None  # None if the team is completed
    turn: Turn | None = None  # to be announced after the commit

    @property
    def phase(self) -> Phase:
        if self.end_of_segment is None:
            return "done"
        return "paused" if self.end_of_segment.status == "waiting" else "failed"


def team_state(
    connection: Connection, instance: Instance, at: str, *, attended: bool = False, settle: bool = False
) -> TeamState:
    """Return the state of a team. `attended` means that a user at a terminal answers asks at once.

    `settle` ends the open proposals of an idle team with the existing votes.
    """
    agents = records.list_agents(connection, instance.id)
    mail = room_records.count_unread(connection, instance.room)
    if any(_can_move(connection, instance.id, agent, mail, at, attended=attended) for agent in agents):
        return TeamState(is_busy=True)
    held = bool(room_records.mail_by_status(connection, instance.room, "held"))
    asks = run_records.list_asks(connection, run_id=instance.id, status="open") if held else []
    if held and (attended or not any(ask.kind == "loop" for ask in asks)):
        return TeamState(is_busy=True)  # `Team` asks the user, or applies the answer
    if room_records.open_proposals(connection, instance.room):
        if not settle:
            return TeamState(is_busy=False)
        settled = perform_in(connection, instance.room, "end_proposals", Actor.system(run=instance.id), at)
        return TeamState(is_busy=True, turn=settled.turn)
    worst = _worst_end(connection, instance.id, agents)
    return TeamState(is_busy=False, end_of_segment=worst or (_WAITING if held else None))


def agents_with_work(connection: Connection, instance: Instance, at: str, *, attended: bool) -> frozenset[str]:
    """Return the idle or waiting agents that can move."""
    mail = room_records.count_unread(connection, instance.room)
    agents = (agent for agent in records.list_agents(connection, instance.id) if agent.status in ("idle", "waiting"))
    return frozenset(
        agent.name for agent in agents if _can_move(connection, instance.id, agent, mail, at, attended=attended)
    )


def blocking_asks(connection: Connection, instance: str, run: str, at: str) -> list[Ask]:
    """Return the open asks that block an agent's run: its own, and the ask about the team's budget."""
    asks = run_records.list_asks(connection, run_id=instance, status="open")
    runs = {run, *(child.id for child in run_records.list_descendants(connection, run))}
    blocking = [ask for ask in asks if ask.run in runs or (ask.run == instance and ask.kind == "limit")]
    return [ask for ask in blocking if ask.expires_at is None or ask.expires_at > at]


def agents_blocked_by(connection: Connection, instance: str, ask: Ask) -> frozenset[str]:
    """Return the agents that can continue when an ask is closed."""
    runs = {state.name: state.run for state in records.list_agents(connection, instance) if state.run is not None}
    if ask.run == instance:  # an ask about the whole team
        return frozenset(runs)
    descendants = run_records.list_descendants
    return frozenset(
        name for name, run in runs.items() if ask.run in (run, *(child.id for child in descendants(connection, run)))
    )


def _can_move(
    connection: Connection, instance: str, agent: AgentState, mail: Mapping[str, int], at: str, *, attended: bool
) -> bool:
    if agent.status in ("running", "backoff"):
        return True
    if agent.status == "waiting":
        return agent.run is not None and (attended or not blocking_asks(connection, instance, agent.run, at))
    return agent.status == "idle" and mail.get(agent.name, 0) > 0


def _worst_end(connection: Connection, instance: str, agents: list[AgentState]) -> SegmentEnd | None:
    """Return the end of the workflow by its worst agent: failed, at a limit, or waiting. Return None if it has none."""
    failed = [agent for agent in agents if agent.status == "failed"]
    if given_up := [agent for agent in failed if agent.run is None]:
        return SegmentEnd(status="failed", reason="agent failed", error=_failure_error(connection, instance, given_up))
    if failed:
        return SegmentEnd(status="failed", reason="limit", error=_limit_error(connection, instance, failed[0]))
    return _WAITING if any(agent.status == "waiting" for agent in agents) else None


def _failure_error(connection: Connection, instance: str, failed: list[AgentState]) -> ErrorInfo:
    """Return the error for failed agents, with each reason and the command that continues."""
    errors: dict[str, dict[str, Any]] = {}
    for agent in failed:
        errors[agent.name] = records.agent_notes(connection, instance, agent.name).get("error") or {}
    reasons = [f"{name}: {error.get('message') or 'no reason given'}" for name, error in errors.items()]
    hint = f"Fix the problem, then continue: guild resume {instance}"
    first = next(iter(errors.values()))
    failure = {**first, "code": RuntimeFailed.code, "message": "; ".join(reasons), "hint": hint, "agents": list(errors)}
    return cast("ErrorInfo", failure)


def _limit_error(connection: Connection, instance: str, agent: AgentState) -> ErrorInfo:
    run = run_records.find_run(connection, agent.run or "")
    error = (run.error if run else None) or ErrorInfo(code=LimitReached.code, message="a limit was reached")
    return {**error, "message": f"{agent.name}: {error['message']}", "agents": [agent.name]}
