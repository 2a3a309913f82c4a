"""The election of the document owner: asks every agent for its vote before the work begins.

The document owner is the only agent that writes the documents. Each agent votes in a separate run whose only tool is
`proposal_vote`. An agent that cannot be asked, or does not answer within 300 seconds, has no vote.
Does not count votes (`room/voting.py`).

Invariant: the room records each vote under the call that cast it. A killed team neither repeats nor loses a vote.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from guildhall.core.clock import Clock, parse_stamp, stamp
from guildhall.models.model import VOTER
from guildhall.room.model import Actor, Proposal, RoomRecord
from guildhall.room.tools import RoomTools, room_tools
from guildhall.room.voting import announcement
from guildhall.runs.execution.segment import StopSegment
from guildhall.runs.hooks import RunHooks
from guildhall.runs.model import ENDED, Run, RunRequest, SegmentEnd
from guildhall.runs.purpose import PLAIN
from guildhall.runs.record import records as run_records
from guildhall.workers.definition import Definition as WorkerDefinition
from guildhall.workers.definition import Limits
from guildhall.workflow.ordering import RecordedOrder, who

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from guildhall.room.service import Room
    from guildhall.runs.execution.runs import Runs
    from guildhall.store.engine import Store
    from guildhall.tools.model import Execute
    from guildhall.workers.model import Worker
    from guildhall.workflow.model import Agent, Workflow

TOOLS = ("proposal_vote",)
_SECONDS = 300.0  # that there are to vote
_TURNS = 5
_LONGEST_NAME = 64

_TOLD = """\
You are {agent}, one of several agents who are about to work together. First you elect the one of you who alone writes \
the documents that you share; the others make suggestions. You vote once, with proposal_vote, and then you end."""


def is_needed(workflow: Workflow, room: RoomRecord) -> bool:
    """Whether the documents have yet to be given an owner. One who was elected before, in this room, stays."""
    context = workflow.definition.context
    return context.enabled and context.document_owner is None and len(workflow.agents) > 1 and room.owner is None


@dataclass(frozen=True, kw_only=True)
class Election:
    """Lets the agents of one workflow elect."""

    instance: str
    workflow: Workflow
    room: Room
    store: Store
    clock: Clock
    runs: Runs
    request: RunRequest
    order: RecordedOrder | None

    async def hold(self) -> None:
        """Returns when the documents have an owner. Who cannot be asked, or does not answer in time, has no vote."""
        actor = Actor.system(run=self.instance, key="election")
        proposal = await self.room.elect_owner(actor, _SECONDS)
        is_open = proposal.status == "open"
        voters = self.workflow.agents if is_open else self.cut_off()
        if not voters:
            return
        voting = [asyncio.create_task(self._vote(agent, proposal)) for agent in voters]
        try:
            await asyncio.wait(voting, timeout=self._left(proposal) if is_open else _SECONDS)
            in_time = all(task.done() for task in voting)
        finally:
            for task in voting:
                task.cancel()
            asked = await asyncio.gather(*voting, return_exceptions=True)
        stood = {run.status for run in asked if not isinstance(run, BaseException) and run is not None}
        if "paused" in stood:  # so is the whole workflow, in a moment: it is gone on with later
            await asyncio.get_running_loop().create_future()
        if is_open and in_time and "waiting" in stood:
            raise StopSegment(SegmentEnd.waiting("ask"))
        await self._close(proposal)

    def cut_off(self) -> list[Agent]:
        """Return the agents whose voting run was interrupted, such as by the end of the hall."""

        return [agent for agent, _ in self.store.read(self._unfinished)]

    def _unfinished(self, connection: Connection) -> list[tuple[Agent, Run]]:
        calls = (
            (agent, run_records.find_call_run(connection, self.instance, _call(agent)))
            for agent in self.workflow.agents
        )
        return [(agent, run) for agent, run in calls if run is not None and run.status not in ENDED]

    async def _close(self, proposal: Proposal) -> None:
        """Ends the election with the votes that there are, and whatever of it still goes on."""
        await self.room.perform("expire", Actor.system())
        await self.room.perform("settle", Actor.system(), proposal=proposal.id)
        now = stamp(self.clock.now())

        def write(connection: Connection) -> None:
            for _, run in self._unfinished(connection):
                run_records.cancel_tree(connection, run.id, now)

        await self.store.write(write)

    async def _vote(self, agent: Agent, proposal: Proposal) -> Run | None:
        """The run in which an agent votes, once it has; the one of before, where it was cut off."""
        made = self.store.read(lambda connection: run_records.find_call_run(connection, self.instance, _call(agent)))
        if made is not None and made.status in ENDED:
            return made
        if made is not None:
            return await self.runs.resume_child(self.instance, made.id, self._hooks(agent))
        worker = voter(agent)
        text = ballot(self.workflow, proposal)
        request = replace(self.request, worker=worker.name, input=text, purpose=PLAIN, budget=None, max_turns=None)
        return await self.runs.run_child(self.instance, _call(agent), request, worker=worker, hooks=self._hooks(agent))

    def _hooks(self, agent: Agent) -> RunHooks:
        return RunHooks(tools=room_tools(TOOLS), executor=partial(self._executor, agent.name))

    def _executor(self, agent: str, run: str) -> Execute:
        call = RoomTools(self.room, agent, run).call
        return call if self.order is None else self.order.calls(who(f"{VOTER}{agent}", 1), call)

    def _left(self, proposal: Proposal) -> float:
        ends = parse_stamp(proposal.expires_at) if proposal.expires_at else self.clock.now()
        return max(0.0, (ends - self.clock.now()).total_seconds())


def _call(agent: Agent) -> str:
    return f"election/{agent.name}"


def voter(agent: Agent) -> Worker:
    """The agent as one that can vote and nothing else. By another name: its usual runs are counted without this one."""
    own = agent.worker.definition
    definition = WorkerDefinition(
        name=f"{VOTER}{agent.name}"[:_LONGEST_NAME],
        description=own.description,
        model=own.model,
        runtime=own.runtime,
        limits=Limits(max_turns=_TURNS, max_budget_usd=own.limits.max_budget_usd),
        base=False,
    )
    return replace(agent.worker, definition=definition, instructions=_TOLD.format(agent=agent.name), workdir=None)


def ballot(workflow: Workflow, proposal: Proposal) -> str:
    """What an agent is told that votes: who stands for it, and what each is for."""
    named = ((agent.name, agent.worker.description) for agent in workflow.agents)
    lines = [f"- {name}: {about}" if about else f"- {name}" for name, about in named]
    return "\n".join(["Who is to write the documents?", *lines, "", announcement(proposal)])
