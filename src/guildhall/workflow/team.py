"""The team of a workflow: executes setup, owner election and kickoff, then turns of agents until the team is idle.

`Team` is the runtime of the workflow's run. The turns of agents are its child runs. A loop for each agent reads the
next step from the database and takes a turn. An idle workflow ends in mode `run`, and waits in mode `start`.
Does not decide the next step (`agent_steps.py`) or quiescence (`quiescence.py`). Does not execute runs (`runs`).

Invariant: a wake-up only makes an agent read the database. A lost wake-up costs at most 30 seconds.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from guildhall.core.clock import Clock, parse_stamp, stamp
from guildhall.core.errors import GuildError, InvalidFile, NotFound
from guildhall.core.events import TroubleData, WorkflowData
from guildhall.room import ballots, mentions
from guildhall.room import records as room_records
from guildhall.room.model import Actor, RoomEventType
from guildhall.room.tools import RoomTools
from guildhall.runs.execution.segment import StopSegment
from guildhall.runs.owner_hooks import RunHooks
from guildhall.runs.purpose import PLAIN
from guildhall.runs.record.entries import Answered, LoopAsked
from guildhall.runtimes.model import Assignment, Doors, Outcome
from guildhall.workflow import document_owner_election, records
from guildhall.workflow.agent_steps import (
    AgentTurn,
    Step,
    grant_for,
    next_step,
    retry_failed,
    room_tool_set,
    team_result,
)
from guildhall.workflow.instance import FINAL_PHASES, Instance, Phase
from guildhall.workflow.loop_guard import drop_held_messages, loop_question, release_held_messages
from guildhall.workflow.quiescence import TeamState, agents_blocked_by, agents_with_work, team_state
from guildhall.workflow.recorded_turn_order import run_label
from guildhall.workflow.setup_commands import run_steps
from guildhall.workflow.start_values import after_setup, kickoff_message, no_agent_warning
from guildhall.workflow.wakeup_schedules import WakeupTimer

if TYPE_CHECKING:
    from datetime import tzinfo

    from sqlalchemy import Connection

    from guildhall.room.operation import Turn
    from guildhall.room.service import Room
    from guildhall.runs.execution.runs import Runs
    from guildhall.runs.model import Ask, Run, RunRequest
    from guildhall.store.engine import Store
    from guildhall.tools.model import Execute, ToolCall
    from guildhall.workflow.model import Agent, Workflow
    from guildhall.workflow.placeholders import Values
    from guildhall.workflow.recorded_turn_order import TakeTurn, TurnOrder

POLL_INTERVAL_S = 30.0  # between repetitions of lost wake-ups
_LOOP = "loop/"  # prefix of the keys of asks about loops
DEBOUNCE_S = 0.2  # an idle team waits for messages of the user before it ends


@dataclass(kw_only=True)
class Team:
    """Executes the run of one workflow."""

    instance: Instance
    workflow: Workflow
    values: Values
    room: Room
    store: Store
    clock: Clock
    runs: Runs
    request: RunRequest  # request of the workflow; agents inherit its models and modes
    zone: tzinfo
    first_pause_s: float  # pause before the first retry of a transient failure
    debounce_s: float
    order: TurnOrder | None = None  # only in a test
    granted: Mapping[str, Any] | None = None  # the raised limits, if the user resumes a failed workflow
    _agent_tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict[str, "asyncio.Task[None]"])
    _phase: Phase = "setup"
    _wakes: dict[str, asyncio.Event] = field(default_factory=dict[str, asyncio.Event])
    _check_idle: asyncio.Event = field(default_factory=asyncio.Event)
    _check_loops: asyncio.Event = field(default_factory=asyncio.Event)
    _proposals_changed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._take_turn: TakeTurn = (
            self._execute_turn if self.order is None else self.order.delay_turns(self._execute_turn, self._step)
        )
        self.wakeups = WakeupTimer(
            run=self.instance.id,
            room=self.room,
            store=self.store,
            clock=self.clock,
            zone=self.zone,
            team=lambda: (self.workflow, self.values),
        )

    async def execute(self, assignment: Assignment, doors: Doors) -> Outcome:
        if self.instance.status != "setup":  # the workflow is resumed
            await self.room.recover()
        if not self._is_resumed():
            await self._enter_phase("setup")
        outputs = await run_steps(self.workflow, self.values, doors.call_tool)
        self.values = after_setup(self.workflow, self.values, outputs)
        election = document_owner_election.Election(
            instance=self.instance.id,
            workflow=self.workflow,
            room=self.room,
            store=self.store,
            clock=self.clock,
            runs=self.runs,
            request=self.request,
            order=self.order,
        )
        if document_owner_election.is_needed(self.workflow, self.room.read_record()) or election.interrupted_voters():
            await self._enter_phase("election")
            await election.run()
        await self._enter_phase("kickoff")
        await self._post_kickoff()
        if self.granted is not None:
            at = stamp(self.clock.now())
            await self.store.write(lambda connection: retry_failed(connection, self.instance, at))
            await self.room.export_files()
        await self._enter_phase("live")
        for agent in self.workflow.agents:
            self._start_agent(agent)
        watchers = (self._watch_loops(), self._watch_proposals(), self._repeat_wakeups(), self.wakeups.run_forever())
        watcher_tasks = [asyncio.create_task(watcher) for watcher in watchers]
        try:
            await self._wait_idle(watcher_tasks)
        finally:
            tasks = [*self._agent_tasks.values(), *watcher_tasks]
            self._agent_tasks.clear()
            for task in tasks:
                task.cancel()
            for task in tasks:
                with suppress(asyncio.CancelledError, Exception):
                    await task
        output = team_result(self.workflow, self.instance, self.room, self.store)
        return Outcome(output=output, messages=[])

    # Notifications

    def wake(self, agents: frozenset[str]) -> None:
        """Let agents read their next step, now or after their turn."""
        for agent in agents:
            if agent in self._wakes:
                self._wakes[agent].set()

    def on_answer(self, ask: Ask) -> None:
        """Wake the agents that an answered or withdrawn ask has blocked."""
        self.wake(self.store.read(lambda connection: agents_blocked_by(connection, self.instance.id, ask)))

    def on_room_event(self, type: RoomEventType) -> None:
        if type == "proposal":
            self._proposals_changed.set()
        elif type == "held":
            self._check_loops.set()

    # Changes of the team

    def add_agent(self, workflow: Workflow, name: str) -> None:
        """Start serving an agent that was added or started again. `workflow` has all current agents."""
        self.workflow = workflow
        if self._phase in ("live", "idle"):
            self._start_agent(workflow.agent(name))

    async def remove_agent(self, name: str) -> None:
        """Stop serving an agent, and cancel its turn."""
        if (task := self._agent_tasks.pop(name, None)) is not None:
            task.cancel()
            await asyncio.wait({task})
        self._check_idle.set()

    def _start_agent(self, agent: Agent) -> None:
        if agent.name not in self._agent_tasks:
            self._agent_tasks[agent.name] = asyncio.create_task(self._serve(agent))

    # Start

    def _is_resumed(self) -> bool:
        """Return True if the workflow was started before, so that the recorded steps of its start are only repeated."""
        if not self.workflow.definition.kickoff:
            return self.instance.status != "setup"
        find_kickoff = partial(room_records.find_call, room=self.room.id, run=self.instance.id, key="kickoff")
        return self.store.read(find_kickoff) is not None

    async def _post_kickoff(self) -> None:
        if self.instance.mode == "run" and (warning := no_agent_warning(self.workflow)):
            self.runs.ledger(self.instance.id).publish(TroubleData, {"message": warning})
        message = kickoff_message(self.workflow, self.values)
        if not message.text.strip():
            return
        names = [agent.name for agent in self.workflow.agents]
        is_for_all = self.shares_nothing and not mentions.find(message, names).reached
        actor = Actor.system(run=self.instance.id, key="kickoff")
        try:
            await self.room.send(message, actor, to=names if is_for_all else ())
        except NotFound as error:  # a resumed run would post the same text
            path = self.workflow.place
            hint = f"Correct the kickoff, then start again: guild {self.instance.mode} {shlex.quote(path)}"
            raise InvalidFile(f"kickoff: {error.message}", where=path, hint=hint) from None

    async def _enter_phase(self, phase: Phase) -> None:
        """Record and publish the phase that the team enters."""
        values: dict[str, Any] = {"status": phase, "reason": None, "ended_at": None}
        await self.store.write(lambda connection: records.change_instance(connection, self.instance.id, **values))
        self._phase = phase
        data = {"phase": phase, "reason": None, "steps": len(self.workflow.definition.setup)}
        self.runs.ledger(self.instance.id).publish(WorkflowData, data)

    # The agents

    async def _serve(self, agent: Agent) -> None:
        wake = self._wakes.setdefault(agent.name, asyncio.Event())
        while True:
            wake.clear()
            step = self._step(agent.name)
            if step.has_work:
                if self._phase == "idle":
                    await self._enter_phase("live")
                run = await self._take_turn(agent, step)
                if run is not None and run.status == "paused":  # the whole team is about to be paused, too
                    await asyncio.get_running_loop().create_future()
                self._check_loops.set()
                continue
            self._check_idle.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._seconds_until(step.due_at)):
                    await wake.wait()

    def _step(self, name: str, until: int | None = None) -> Step:
        at, attended = stamp(self.clock.now()), self._is_attended
        return self.store.read(
            lambda connection: next_step(
                connection, self.instance, self.workflow, name, at=at, attended=attended, until=until
            )
        )

    async def _execute_turn(self, agent: Agent, step: Step) -> Run | None:
        """Execute a turn of an agent, and return its run, or None if the run could not be started."""
        room_turns: list[Turn] = []
        turn = AgentTurn(
            instance=self.instance.id,
            room=self.room.id,
            agent=agent.name,
            step=step,
            clock=self.clock,
            max_rounds=self.workflow.definition.limits.max_rounds_without_progress,
            first_pause_s=self.first_pause_s,
            has_room=not self.shares_nothing,
            keeps_trying=self.instance.mode == "start",
            room_turns=room_turns,
        )
        hooks = self._build_hooks(agent, turn, step)
        try:
            if step.run is not None:
                grant = self.store.read(partial(grant_for, run=step.run, granted=self.granted or {}))
                return self._report_retry(turn, await self.runs.resume_child(self.instance.id, step.run, hooks, grant))
            worker = self.workflow.worker_of(agent, self.values)
            request = replace(self.request, worker=agent.name, input=step.text, purpose=PLAIN, budget=None)
            key = f"{agent.name}/{step.number}"
            run = await self.runs.run_child(self.instance.id, key, request, worker=worker, hooks=hooks, cwd=agent.cwd)
            return self._report_retry(turn, run)
        except GuildError as error:
            failure = error.as_dict()
            await self.store.write(lambda connection: turn.record_start_failure(connection, failure))
            return None
        finally:
            for room_turn in room_turns:
                await self.room.announce(room_turn)
            await self.room.export_files()  # the end of a run changes the state of its mail

    def _report_retry(self, turn: AgentTurn, run: Run) -> Run:
        """Publish the next attempt after a failed run, and return the run."""
        if (text := self.store.read(lambda connection: turn.retry_text(connection, run))) is not None:
            self.runs.ledger(self.instance.id).publish(TroubleData, {"message": text})
        return run

    def _build_hooks(self, agent: Agent, turn: AgentTurn, step: Step) -> RunHooks:
        tool_set = room_tool_set(self.workflow, agent.name, step.kinds)
        return RunHooks(
            tools=tool_set.tools,
            final_tools=tool_set.final,
            deferred_tools=tool_set.deferred,
            tool_loader=tool_set.loader,
            executor=partial(self._create_executor, agent.name, step.number, tool_set.final),
            record_start=turn.record_start,
            record_stop=turn.record_end,
            block_reason=None if self.shares_nothing else self._closed_reason,
            other_capabilities=self.workflow.other_capabilities(agent),
        )

    def _create_executor(self, agent: str, number: int, final: frozenset[str], run: str) -> Execute:
        """Return the function that executes the room tools of a run."""
        call = RoomTools(self.room, agent, run).call
        return call if self.order is None else self.order.delay_calls(run_label(agent, number), call, final)

    def _closed_reason(self, call: ToolCall) -> str | None:
        """Return why a proposal keeps a tool closed, or None."""
        guard = self.room.find_guard(call.tool)
        return None if guard is None else str(ballots.closed_error(guard, call.tool))

    @property
    def shares_nothing(self) -> bool:
        """Return True if the agents have no room: each one works alone on the kickoff."""
        return not self.workflow.definition.context.enabled

    @property
    def _is_attended(self) -> bool:
        if self.order is not None and self.order.is_unattended:
            return False
        return self.runs.is_attended(self.instance.id)

    # Tasks beside the turns of agents

    async def _watch_loops(self) -> None:
        """Ask the user about held messages, one question at a time."""
        while True:
            self._check_loops.clear()
            if self.store.read(lambda connection: bool(room_records.mail_by_status(connection, self.room.id, "held"))):
                await self._ask_about_loop()
            else:
                await self._check_loops.wait()

    async def _ask_about_loop(self) -> None:
        ledger = self.runs.ledger(self.instance.id)
        answers = [entry for entry in ledger.journal.all(Answered) if (entry.key or "").startswith(_LOOP)]
        key = f"{_LOOP}{len(answers) + 1}"
        limits = self.workflow.definition.limits
        question = self.store.read(lambda connection: loop_question(connection, self.instance, limits))
        ask = await ledger.open("loop", key, [key], question, lambda ask: LoopAsked(title=question.title, ask=ask))
        self._check_idle.set()
        ask = await ledger.wait_closed(ask)
        if (answer := ask.answer) is None:  # withdrawn: the workflow was stopped
            await asyncio.get_running_loop().create_future()
            return
        turns: list[Turn | None] = []

        def apply_answer(connection: Connection) -> None:
            apply = release_held_messages if answer.choice == "yes" else drop_held_messages
            turns.append(apply(connection, self.instance, stamp(self.clock.now())))

        await ledger.apply(ask, key, then=apply_answer)
        for turn in filter(None, turns):
            await self.room.announce(turn)
        self._check_idle.set()

    async def _watch_proposals(self) -> None:
        """End proposals when their time is up."""
        while True:
            self._proposals_changed.clear()
            expires_at = self.store.read(lambda connection: ballots.next_expiry(connection, self.room.id))
            with suppress(TimeoutError):
                async with asyncio.timeout(self._seconds_until(expires_at)):
                    await self._proposals_changed.wait()
                continue
            if expires_at is not None and expires_at <= stamp(self.clock.now()):
                await self.room.perform("expire_proposals", Actor.system())
                self._check_idle.set()

    def _seconds_until(self, time: str | None) -> float | None:
        """Return the seconds until a time, at most `POLL_INTERVAL_S`, or None without a time."""
        if time is None:
            return None
        return max(0.0, min(POLL_INTERVAL_S, (parse_stamp(time) - self.clock.now()).total_seconds()))

    async def _repeat_wakeups(self) -> None:
        """Wake the agents whose wake-up was lost, with one query for all agents."""
        while True:
            await self.clock.sleep(POLL_INTERVAL_S)
            at, attended = stamp(self.clock.now()), self._is_attended
            find_agents = partial(agents_with_work, instance=self.instance, at=at, attended=attended)
            self.wake(self.store.read(find_agents))
            self._check_idle.set()

    # The end

    async def _wait_idle(self, watchers: Sequence[asyncio.Task[None]]) -> None:
        """Return when no agent can move. Raise StopSegment if the team is not completed.

        In mode `start`, a team never completes. It is idle until a message arrives.
        """
        while True:
            idle_check = asyncio.ensure_future(self._check_idle.wait())
            others = {*watchers, *self._agent_tasks.values()}
            done, _ = await asyncio.wait({idle_check, *others}, return_when=asyncio.FIRST_COMPLETED)
            idle_check.cancel()
            for task in done - {idle_check}:
                if task.cancelled():
                    continue  # the agent was removed
                task.result()  # raises the error of an agent's loop
            self._check_idle.clear()
            if self._state().is_busy:
                continue
            await self.clock.sleep(self.debounce_s)
            state = await self.store.write(self._end_if_idle)
            if state.turn is not None:
                self._check_idle.set()  # the turn may have woken no agent
                await self.room.announce(state.turn)
            if not state.is_busy and self.instance.mode == "start":
                await self._enter_idle()
            elif not state.is_busy:
                if state.end_of_segment is not None:
                    raise StopSegment(state.end_of_segment)
                return

    async def _enter_idle(self) -> None:
        """Enter the phase `idle`, and leave it if an agent was woken meanwhile."""
        if self._phase == "live":
            await self._enter_phase("idle")
            if self._state().is_busy:
                await self._enter_phase("live")

    def _state(self) -> TeamState:
        at, attended = stamp(self.clock.now()), self._is_attended
        return self.store.read(lambda connection: team_state(connection, self.instance, at, attended=attended))

    def _end_if_idle(self, connection: Connection) -> TeamState:
        at = stamp(self.clock.now())
        state = team_state(connection, self.instance, at, attended=self._is_attended, settle=True)
        if not state.is_busy and self.instance.mode == "run":
            ended = at if state.phase in FINAL_PHASES else None
            records.change_instance(connection, self.instance.id, status=state.phase, ended_at=ended)
        return state
