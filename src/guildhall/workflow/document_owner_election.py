"""The election of the document owner: asks every agent for its vote before the kickoff.

The document owner is the only agent that writes the documents. Each agent votes in a separate run whose only tool is
`proposal_vote`. An agent whose run fails or takes more than 300 seconds does not vote.
Does not count votes (`room/ballots.py`).

Invariant: the room logs each vote under the key of its call, so a killed team neither repeats nor loses a vote.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from guildhall.core.clock import Clock, parse_stamp, stamp
from guildhall.models.model import VOTER_PREFIX
from guildhall.room.model import Actor, Proposal, RoomRecord
from guildhall.room.text import announcement_text
from guildhall.room.tools import RoomTools, room_tools
from guildhall.runs.execution.segment import StopSegment
from guildhall.runs.model import ENDED, Run, RunRequest, SegmentEnd
from guildhall.runs.owner_hooks import RunHooks
from guildhall.runs.purpose import PLAIN
from guildhall.runs.record import records as run_records
from guildhall.workers.definition import Definition as WorkerDefinition
from guildhall.workers.definition import Limits
from guildhall.workflow.recorded_turn_order import TurnOrder, run_label

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from guildhall.room.service import Room
    from guildhall.runs.execution.runs import Runs
    from guildhall.store.engine import Store
    from guildhall.tools.model import Execute
    from guildhall.workers.model import Worker
    from guildhall.workflow.model import Agent, Workflow

TOOLS = ("proposal_vote",)
_TIMEOUT_S = 300.0
_MAX_TURNS = 5
_MAX_NAME_CHARS = 64

_INSTRUCTIONS = """\
You are {agent}. Vote for the agent that will write the shared documents of your team. The other agents \
suggest changes to it. Call proposal_vote once."""


def is_needed(workflow: Workflow, room: RoomRecord) -> bool:
    """Return True if the agents have to elect a document owner. A room keeps its elected owner."""
    context = workflow.definition.context
    if not (workflow.definition.kickoff or "").strip():
        return False  # no agent has work yet
    return context.enabled and context.document_owner is None and len(workflow.agents) > 1 and room.owner is None


@dataclass(frozen=True, kw_only=True)
class Election:
    """The election of one workflow."""

    instance: str
    workflow: Workflow
    room: Room
    store: Store
    clock: Clock
    runs: Runs
    request: RunRequest
    order: TurnOrder | None

    async def run(self) -> None:
        """Run the election and return when the documents have an owner."""
        actor = Actor.system(run=self.instance, key="election")
        proposal = await self.room.elect_owner(actor, _TIMEOUT_S)
        is_open = proposal.status == "open"
        voters = self.workflow.agents if is_open else self.interrupted_voters()
        if not voters:
            return
        tasks = [asyncio.create_task(self._vote(agent, proposal)) for agent in voters]
        try:
            await asyncio.wait(tasks, timeout=self._seconds_left(proposal) if is_open else _TIMEOUT_S)
            is_in_time = all(task.done() for task in tasks)
        finally:
            for task in tasks:
                task.cancel()
            runs = await asyncio.gather(*tasks, return_exceptions=True)
        statuses = {run.status for run in runs if not isinstance(run, BaseException) and run is not None}
        if "paused" in statuses:  # the whole workflow is about to be paused, too
            await asyncio.get_running_loop().create_future()
        if is_open and is_in_time and "waiting" in statuses:
            raise StopSegment(SegmentEnd.waiting("ask"))
        if is_in_time and statuses <= {"failed"} and not self.room.list_votes(proposal):
            await self.room.perform("proposal_cancel", Actor.system(), proposal=proposal.id)  # the next start elects
            return
        await self._close(proposal)

    def interrupted_voters(self) -> list[Agent]:
        """Return the agents whose voting run has not ended."""
        return [agent for agent, _ in self.store.read(self._unfinished_runs)]

    def _unfinished_runs(self, connection: Connection) -> list[tuple[Agent, Run]]:
        calls = (
            (agent, run_records.find_call_run(connection, self.instance, _call_key(agent)))
            for agent in self.workflow.agents
        )
        return [(agent, run) for agent, run in calls if run is not None and run.status not in ENDED]

    async def _close(self, proposal: Proposal) -> None:
        """End the election with the existing votes, and cancel the unfinished runs of voters."""
        await self.room.perform("expire_proposals", Actor.system())
        await self.room.perform("end_proposals", Actor.system(), proposal=proposal.id)
        now = stamp(self.clock.now())

        def write(connection: Connection) -> None:
            for _, run in self._unfinished_runs(connection):
                run_records.cancel_with_child_runs(connection, run.id, now)

        await self.store.write(write)

    async def _vote(self, agent: Agent, proposal: Proposal) -> Run | None:
        """Run an agent until it has voted, and return the run. Resume its run if it was interrupted."""
        earlier = self.store.read(
            lambda connection: run_records.find_call_run(connection, self.instance, _call_key(agent))
        )
        if earlier is not None and earlier.status in ENDED:
            return earlier
        if earlier is not None:
            return await self.runs.resume_child(self.instance, earlier.id, self._build_hooks(agent))
        worker = voter_worker(agent)
        text = ballot_text(self.workflow, proposal)
        request = replace(self.request, worker=worker.name, input=text, purpose=PLAIN, budget=None, max_turns=None)
        return await self.runs.run_child(
            self.instance, _call_key(agent), request, worker=worker, hooks=self._build_hooks(agent)
        )

    def _build_hooks(self, agent: Agent) -> RunHooks:
        executor = partial(self._create_executor, agent.name)
        return RunHooks(tools=room_tools(TOOLS), final_tools=frozenset(TOOLS), executor=executor)

    def _create_executor(self, agent: str, run: str) -> Execute:
        call = RoomTools(self.room, agent, run).call
        return call if self.order is None else self.order.delay_calls(run_label(f"{VOTER_PREFIX}{agent}", 1), call)

    def _seconds_left(self, proposal: Proposal) -> float:
        expiry = parse_stamp(proposal.expires_at) if proposal.expires_at else self.clock.now()
        return max(0.0, (expiry - self.clock.now()).total_seconds())


def _call_key(agent: Agent) -> str:
    return f"election/{agent.name}"


def voter_worker(agent: Agent) -> Worker:
    """Return the worker of an agent's voting run. Its name differs, so that the agent's run count excludes the run."""
    own = agent.worker.definition
    definition = WorkerDefinition(
        name=f"{VOTER_PREFIX}{agent.name}"[:_MAX_NAME_CHARS],
        description=own.description,
        model=own.model,
        runtime=own.runtime,
        limits=Limits(max_turns=_MAX_TURNS, max_budget_usd=own.limits.max_budget_usd),
        base=False,
    )
    return replace(
        agent.worker, definition=definition, instructions=_INSTRUCTIONS.format(agent=agent.name), workdir=None
    )


def ballot_text(workflow: Workflow, proposal: Proposal) -> str:
    """Return the input of a voter: the candidates with their descriptions, and the proposal."""
    candidates = ((agent.name, agent.worker.description) for agent in workflow.agents)
    lines = [f"- {name}: {description}" if description else f"- {name}" for name, description in candidates]
    return "\n".join(["Who should own the documents?", *lines, "", announcement_text(proposal)])
