"""Replay and export of workflows: repeats a recorded workflow offline, and writes it as a script with a test.

Does not execute tools or call models. Exported tests are run by `hall.testrun`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guildhall.core.errors import GuildError, NotFound, ReplayDiffers
from guildhall.models.model import VOTER_PREFIX
from guildhall.room import records as room_records
from guildhall.room.model import PERSON, LogEntry
from guildhall.room.replay import RepeatedOperation, RoomReplay, shown_mail
from guildhall.room.tools import TOOLS as ROOM_TOOLS
from guildhall.room.tools import room_tools
from guildhall.runs.execution.preparation import recorded_frame
from guildhall.runs.execution.repeated_calls import without_repeat_note
from guildhall.runs.owner_hooks import RunHooks, replay_hooks
from guildhall.runs.purpose import WorkflowPurpose
from guildhall.runs.record.entries import Ended, ModelAnswered, ToolEnded, ToolStarted
from guildhall.runs.replay.replay import Difference, RecordEnded, ReplayResult, describe_difference
from guildhall.runs.replay.script_export import WorkflowPart
from guildhall.runtimes.model import Assignment, Doors, Outcome
from guildhall.store.engine import scratch
from guildhall.tools.model import ToolCall, ToolResult
from guildhall.workflow import document_owner_election, records
from guildhall.workflow.agent_steps import earlier_effects, room_tool_set, run_input, team_result
from guildhall.workflow.loader import from_record, load
from guildhall.workflow.setup_commands import TOOLS, run_steps
from guildhall.workflow.start_values import (
    after_setup,
    kickoff_message,
    recorded_input,
    room_settings,
    start_values,
    workflow_worker,
)
from guildhall.workflow.turn_order import begin_label, call_label, end_label, run_label

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from guildhall.core.config import Settings
    from guildhall.core.request_frame import Frame
    from guildhall.runs.model import Run
    from guildhall.runs.record.journal import Journal
    from guildhall.runs.record.queries import History
    from guildhall.runs.replay.replay import Recordings
    from guildhall.store.engine import Store
    from guildhall.workers.model import Worker
    from guildhall.workflow.instance import Instance
    from guildhall.workflow.model import Workflow
    from guildhall.workflow.placeholders import Values

    Tree = Sequence[tuple[Run, Journal]]

KICKOFF_KEY = "kickoff"


@dataclass(frozen=True, kw_only=True)
class FoundDifference:
    """A difference between the recording and the replay, with its time."""

    at: str
    run: str
    difference: Difference


@dataclass(kw_only=True)
class ReplayedTeam:
    """Replaces the team of a workflow in a replay: takes its setup and its room from the recording."""

    instance: Instance
    workflow: Workflow  # as its file is now
    values: Values
    room: RoomReplay
    store: Store  # of the recording
    history: History  # of the recording
    found: list[FoundDifference] = field(default_factory=list[FoundDifference])
    _journals: dict[str, Journal] = field(default_factory=dict[str, "Journal"])

    def __post_init__(self) -> None:
        self._tree = {run.id: run for run in self.history.tree(self.instance.id)}

    async def execute(self, assignment: Assignment, doors: Doors) -> Outcome:
        outputs = await run_steps(self.workflow, self.values, doors.call_tool)
        self.values = after_setup(self.workflow, self.values, outputs)
        await self._play_room()
        end = self._journal(self.instance.id).entries[-1].data
        if self.found or not isinstance(end, Ended) or end.status != "completed":
            raise RecordEnded
        output = team_result(self.workflow, self.instance, self.room.room, self.store)
        return Outcome(output=output, messages=[])

    # The agents

    def worker_and_hooks(self, run: Run) -> tuple[Worker, RunHooks] | None:
        """Return the current worker and the hooks of an agent's run, or None if the workflow has no such agent."""
        name = run.worker.removeprefix(VOTER_PREFIX)
        agent = next((agent for agent in self.workflow.agents if agent.name == name), None)
        if run.parent != self.instance.id or agent is None:
            return None
        if run.worker.startswith(VOTER_PREFIX):
            tools = document_owner_election.TOOLS
            return document_owner_election.voter_worker(agent), replace(
                replay_hooks(room_tools(tools)), final_tools=frozenset(tools)
            )
        read = self.store.read(lambda c: room_records.messages_read(c, self.instance.room, run.id))
        tool_set = room_tool_set(self.workflow, agent.name, frozenset(one.kind for one in read))
        hooks = replace(
            replay_hooks(tool_set.tools),
            final_tools=tool_set.final,
            deferred_tools=tool_set.deferred,
            tool_loader=tool_set.loader,
        )
        return self.workflow.worker_of(agent, self.values), hooks

    # The room

    async def _play_room(self) -> None:
        """Repeat the operations of the room up to the end of this workflow, or up to the first difference."""
        operations = self.room.operations()
        own = [one.place for one in operations if one.actor.run in self._tree]
        until = max(own, default=0)
        first = min(own, default=0)
        opened = max((one.place for one in operations if one.op == "open" and one.place < first), default=None)
        for then in operations:
            if then.place > until:
                break
            try:
                self._compare_beginning(then, opened)
                made = await self.room.repeat(then, self._call(then))
                self._compare(then, made)
            except ReplayDiffers:
                return
            except GuildError as error:
                self._add_difference(then, f"the operation fails now: {error}")
                return

    def _compare_beginning(self, then: LogEntry, opened: int | None) -> None:
        """Compare the inputs that the current file and the mail determine: room settings, kickoff, first messages."""
        if then.place == opened:
            now = room_settings(self.workflow, self.values).open_arguments(
                [agent.name for agent in self.workflow.agents]
            )
            self._check_equal(then, "the settings of the room", then.arguments, now)
        if then.actor.run == self.instance.id and then.actor.key == KICKOFF_KEY:
            now = kickoff_message(self.workflow, self.values)
            self._check_equal(then, "the kickoff", then.arguments["parts"], now.as_list())
        if then.op == "inbox_shown" and then.actor.run in self._tree:
            self._compare_first_message(then, self._tree[then.actor.run])

    def _compare_first_message(self, then: LogEntry, run: Run) -> None:
        recorded: str = run.request.input
        possible = list(self.room.read(lambda connection: self._first_messages(connection, then, run)))
        if recorded not in possible:
            self._check_equal(then, "the first message", recorded, possible[0])

    def _first_messages(self, connection: Connection, then: LogEntry, run: Run) -> Iterator[str]:
        """Yield the possible first messages of a run. The state of the agent decided if it lists earlier effects."""
        room = self.room.room.id
        batch = shown_mail(connection, room, then)
        more = then.arguments.get("left", 0)
        instance, number = self.instance.id, run.ordinal + 1
        effects = self.store.read(lambda record: earlier_effects(record, instance, run.worker, number))
        for before in ("", effects):
            yield run_input(connection, self.workflow, room, then.actor.name, batch, more=more, before=before)

    def _call(self, then: LogEntry) -> ToolCall | None:
        """Return the call that made an operation, with the arguments that the model gave, or None."""
        run, key = then.actor.run, then.actor.key
        if run is None or key is None or not self._is_run(run):
            return None
        entry = self._journal(run).last(key, ToolStarted)
        if entry is None or entry.data.tool != then.op:
            return None
        return ToolCall(key=key, tool=entry.data.tool, arguments=entry.data.arguments)

    def _compare(self, then: LogEntry, made: RepeatedOperation) -> None:
        self._check_equal(then, f"the arguments of {then.op}", then.arguments, made.arguments)
        self._check_equal(then, f"the effect of {then.op}", then.result, made.result)
        run, key = then.actor.run, then.actor.key
        if made.tool_result is not None and run is not None and key is not None:
            ended = self._journal(run).last(key, ToolEnded)
            if ended is not None:
                given = without_repeat_note(ended.data)
                self._check_equal(then, f"the result of {then.op}", given.text, made.tool_result.text)
        if then.op == "open_owner_election":
            self._compare_ballots(then, made)

    def _compare_ballots(self, then: LogEntry, made: RepeatedOperation) -> None:
        room = self.room.room
        proposal = next(one for one in room.list_proposals() if one.id == made.result["id"])
        for run in self._tree.values():
            if run.worker.startswith(VOTER_PREFIX):
                self._check_equal(
                    then, "the ballot", run.request.input, document_owner_election.ballot_text(self.workflow, proposal)
                )

    def _check_equal(self, then: LogEntry, label: str, recorded: Any, now: Any) -> None:
        if recorded != now:
            raise self._add_difference(then, describe_difference(label, recorded, now))

    def _add_difference(self, then: LogEntry, text: str) -> ReplayDiffers:
        run = then.actor.run if then.actor.run and self._is_run(then.actor.run) else self.instance.id
        self.found.append(
            FoundDifference(at=then.at, run=run, difference=Difference(step=self._step(run, then), text=text))
        )
        return ReplayDiffers(text)

    def _step(self, run: str, then: LogEntry) -> int:
        """Return the step of an operation in its run's journal: its call, or the last entry before it."""
        journal = self._journal(run)
        if then.actor.key and (entries := journal.of(then.actor.key)):
            return entries[-1].seq
        return max((entry.seq for entry in journal.entries if entry.at <= then.at), default=0)

    def _is_run(self, id: str) -> bool:
        if id in self._tree:
            return True
        try:
            self.history.get(id)  # of an earlier generation in the same room
        except NotFound:
            return False
        return True

    def _journal(self, run: str) -> Journal:
        if run not in self._journals:
            self._journals[run] = self.history.journal(run)
        return self._journals[run]


@dataclass(frozen=True, kw_only=True)
class WorkflowReplays:
    """Replays recorded workflows."""

    store: Store
    history: History
    recordings: Recordings
    find: Callable[[str, Frame], Worker]
    settings: Callable[[Frame], Settings]

    async def replay(self, run: str, frame: Frame) -> ReplayResult:
        """Replay a workflow with its runs. Given a child run, report only its differences."""
        root = self.history.get(self.history.get(run).root)
        instance = self.store.read(lambda connection: records.find_instance(connection, root.id))
        if instance is None:
            raise NotFound(f"the run {root.id} is not a workflow")
        tree = self.history.tree(root.id)
        wanted = {one.id for one in self.history.tree(run)}
        steps = sum(len(self.history.entries(one)) for one in wanted)
        there = recorded_frame(root.frame, frame)
        workflow, gone = self._current_workflow(instance, there)
        try:
            params = self.history.purpose(root.id, WorkflowPurpose).params
            allowed = self.settings(there).env
            values = start_values(workflow, tag=instance.tag, params=params, frame=there, allowed=allowed)
        except GuildError as error:
            difference = Difference(step=0, text=f"the workflow cannot start now: {error}")
            return ReplayResult(run=root.id, steps=steps, difference=difference, worker_gone=gone)
        with scratch() as empty:
            room = RoomReplay(instance.room, self.store, empty)
            team = ReplayedTeam(
                instance=instance, workflow=workflow, values=values, room=room, store=self.store, history=self.history
            )
            again = replace(root, request=replace(root.request, input=recorded_input(workflow)))
            hooks = replay_hooks(TOOLS)
            played = [
                await self.recordings.replay_one(
                    again, frame, worker=workflow_worker(workflow), hooks=hooks, runtime=team
                )
            ]
            if played[0].matches:
                played += [await self._play(one, team, frame) for one in tree[1:] if one.id in wanted]
        found = [*team.found, *(self._found(one) for one in played if not one.matches)]
        gone = gone or any(one.worker_gone for one in played if one.run in wanted)
        first = min((one for one in found if one.run in wanted), key=lambda one: one.at, default=None)
        if first is None:
            return ReplayResult(run=run, steps=steps, worker_gone=gone)
        return ReplayResult(run=first.run, steps=steps, difference=first.difference, worker_gone=gone)

    async def _play(self, run: Run, team: ReplayedTeam, frame: Frame) -> ReplayResult:
        worker, hooks = team.worker_and_hooks(run) or (None, None)
        return await self.recordings.replay_one(run, frame, worker=worker, hooks=hooks)

    def _found(self, played: ReplayResult) -> FoundDifference:
        assert played.difference is not None
        entries = self.history.entries(played.run)
        step = min(played.difference.step, len(entries) - 1)
        return FoundDifference(at=entries[step].at, run=played.run, difference=played.difference)

    def _current_workflow(self, instance: Instance, frame: Frame) -> tuple[Workflow, bool]:
        """Load the workflow from its current file. A recorded worker replaces a missing one."""
        then = from_record(instance.source, instance.definition)
        path = Path(instance.path)
        if not path.exists():
            return then, True
        gone: list[str] = []

        def find(name: str) -> Worker:
            try:
                return self.find(name, replace(frame, cwd=path.parent))
            except NotFound:
                for agent in then.agents:
                    if then.definition.agents[agent.name].worker == name:
                        gone.append(name)
                        return agent.worker
                raise

        return load(path, find), bool(gone)


def team_part(tree: Tree, store: Store) -> WorkflowPart | None:
    """Return the part of a script that describes the workflow itself, or None if the run is not a workflow."""
    root, journal = tree[0]
    instance = store.read(lambda connection: records.find_instance(connection, root.id))
    if instance is None:
        return None
    operations = store.read(lambda connection: room_records.log_entries(connection, instance.room))
    writer = _TestWriter(tree, operations)
    path, top = Path(instance.path), root.frame.root
    shown = path.relative_to(top) if path.is_relative_to(top) else path
    fields: dict[str, Any] = {"workflow": str(shown), "tag": instance.tag}
    purpose = root.purpose_as(WorkflowPurpose)
    if purpose is not None and purpose.params:
        fields["params"] = dict(purpose.params)
    if setup := list(_setup_steps(journal)):
        fields["setup"] = setup
    fields["order"] = list(writer.order())
    files, tools = writer.files(), frozenset(ROOM_TOOLS)
    return WorkflowPart(
        fields=fields, files=files, notes=writer.notes, tools=tools, untestable_reason=writer.untestable
    )


def _setup_steps(journal: Journal) -> Iterator[dict[str, Any]]:
    for started in journal.all(ToolStarted):
        end = journal.last(started.key or "", ToolEnded)
        if end is None:
            continue
        asked = started.data.arguments or {}
        result = ToolResult.from_dict(end.data.result)
        step: dict[str, Any] = {"command": asked["command"]}
        if asked["variables"]:
            step["variables"] = asked["variables"]
        if result.is_error:
            yield {**step, "prints": result.text, "failed": True}
        else:
            yield {**step, "prints": ToolResult(content=result.content[:1]).text}


class _TestWriter:
    """Derives the data of a test from the log of a room."""

    def __init__(self, tree: Tree, operations: Sequence[LogEntry]) -> None:
        self._runs = {run.id: (run, journal) for run, journal in tree}
        own = [one.place for one in operations if one.actor.run in self._runs]
        first, last = min(own, default=0), max(own, default=0)
        is_used = any(one.place < first and one.op != "open" for one in operations)
        self.untestable = "its room has earlier messages (start with --fresh)" if is_used else None
        self._own = [one for one in operations if first <= one.place <= last]
        self._opened = [one for one in operations if one.op == "open" and one.place < max(first, 2)]
        self.notes: list[str] = []

    def order(self) -> Iterator[str | dict[str, Any]]:
        for one in self._own:
            if one.op == "send" and one.actor.name == PERSON:
                said = "".join(text for text, _ in one.arguments["parts"])
                yield {"person": said, **({"to": one.arguments["to"]} if one.arguments["to"] else {})}
            elif one.op == "send" and (one.actor.key or "").startswith("schedule/"):
                self.notes.append("messages of schedules (a test ends before they are due)")
            elif one.op == "expire_proposals" and one.result.get("ended"):
                self.notes.append("expired proposals (a test is faster than their timeout)")
            elif (place := self._place(one)) is not None:
                yield place

    def _place(self, one: LogEntry) -> str | None:
        found = self._runs.get(one.actor.run or "")
        if found is None:
            return None
        run, journal = found
        mine = run_label(run.worker, run.ordinal + 1)
        if one.op == "inbox_shown":
            return f"{begin_label(mine)} {one.result.get('until', 0)}"
        if one.op in ("acknowledge", "mark_dead"):
            return end_label(mine)
        if one.op in ROOM_TOOLS and one.actor.key is not None:
            return f"{mine} {call_label(one.actor.key, _call_index(journal, one.actor.key))} {one.op}"
        return None

    def files(self) -> dict[str, str | None]:
        """Return the content of document files that existed before, as far as a run read it before changing it."""
        folder = self._opened[-1].arguments["documents"].partition("file:")[2] if self._opened else ""
        held: dict[str, str | None] = {}
        seen: set[str] = set()
        for one in self._own:
            path = one.result.get("path")
            if not folder or path is None or path in seen:
                continue
            seen.add(path)
            if "content" in one.result:
                held[str(Path(folder) / path)] = one.result["content"]
            elif one.result.get("new") is False:
                self.notes.append(f"the content of the document {path} before its first change")
        return held


def _call_index(journal: Journal, key: str) -> int:
    """Return the index of a tool call among the calls of its model response."""
    response, _, id = key.partition("/")
    entry = journal.last(response, ModelAnswered)
    parts: list[dict[str, Any]] = entry.data.response["parts"] if entry else []
    calls = [part["tool_call_id"] for part in parts if part["part_kind"] == "tool-call"]
    return calls.index(id) if id in calls else 0
