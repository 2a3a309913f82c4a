"""Quiet: no agent can make progress. Known exactly, from one transaction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from guildhall.room import inbox, proposals
from guildhall.room.model import Actor
from guildhall.room.turn import take
from guildhall.runs import records as run_records
from guildhall.runs.model import Stretch
from guildhall.workflow import records

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import Connection

    from guildhall.room.turn import Turn
    from guildhall.workflow.instance import AgentState, Instance, Phase


@dataclass(frozen=True, kw_only=True)
class Standing:
    """How a team stands: whether somebody can move, and if not, what keeps it from being done."""

    busy: bool
    stretch: Stretch | None = None  # None: nothing, it is done
    turn: Turn | None = None  # what is to be announced

    @property
    def phase(self) -> Phase:
        if self.stretch is None:
            return "done"
        return "paused" if self.stretch.status == "waiting" else "failed"


def look(connection: Connection, instance: Instance, at: str, *, settle: bool = False) -> Standing:
    """How a team stands now. `settle`: proposals on which nobody will vote any more end with the votes they have."""
    agents = records.agents_of(connection, instance.id)
    mail = inbox.waiting(connection, instance.room)
    if any(_can_move(connection, agent, mail) for agent in agents):
        return Standing(busy=True)
    if proposals.open_count(connection, instance.room):
        if not settle:
            return Standing(busy=False)
        return Standing(busy=True, turn=_settled(connection, instance, at))
    return Standing(busy=False, stretch=_worst(connection, instance.id, agents))


def _settled(connection: Connection, instance: Instance, at: str) -> Turn | None:
    def settle(turn: Turn) -> dict[str, Any]:
        return {"ended": [proposal.id for proposal in proposals.settle_open(turn)]}

    return take(connection, instance.room, "settle", Actor.system(run=instance.id), at, {}, settle).turn


def _can_move(connection: Connection, agent: AgentState, mail: Mapping[str, int]) -> bool:
    if agent.status in ("running", "backoff"):
        return True
    if agent.status == "waiting":
        return agent.run is not None and not run_records.list_asks(connection, run=agent.run, status="open")
    return agent.status != "stopped" and agent.run is None and mail.get(agent.name, 0) > 0


def _worst(connection: Connection, instance: str, agents: list[AgentState]) -> Stretch | None:
    """How the workflow ends by the worst of its agents: one that failed, one at a limit, one that waits."""
    limited: Stretch | None = None
    for agent in agents:
        if agent.status != "failed":
            continue
        found = records.last_run(connection, instance, agent.name)
        error: Mapping[str, Any] = dict((found.error if found else None) or {"code": "error", "message": "it failed"})
        failed = Stretch(status="failed", reason=found.reason if found else None, error={**error, "agent": agent.name})
        if failed.reason != "limit":
            return failed
        limited = limited or failed
    if limited is not None:
        return limited
    waits = any(agent.status == "waiting" for agent in agents)
    return Stretch(status="waiting", reason="ask") if waits else None
