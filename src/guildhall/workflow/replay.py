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
from guildhall.workflow.recorded_turn_order import begin_label, call_label, end_label, run_label
from guildhall.workflow.setup_commands import TOOLS, run_steps
from guildhall.workflow.start_values import (
    after_setup,
    kickoff_message,
    recorded_input,
    room_settings,
    start_values,
    workflow_worker,
)

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
    differences: list[FoundDifference] = field(default_factory=list[FoundDifference])
    _journals: dict[str, Journal] = field(default_factory=dict[str, "Journal"])

    def __post_init__(self) -> None:
        self._tree = {run.id: run for run in self.history.tree(self.instance.id)}

    async def execute(self, assignment: Assignment, doors: Doors) -> Outcome:
        outputs = await run_steps(self.workflow, self.values, doors.call_tool)
        self.values = after_setup(self.workflow, self.values, outputs)
        await self._play_room()
        end = self._journal(self.instance.id).entries[-1].data
        if self.differences or not isinstance(end, Ended) or end.status != "completed":
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
        tool_set = room_tool_set(self.workflow, agent.name, frozenset(message.kind for message in read))
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
        places = [logged.place for logged in operations if logged.actor.run in self._tree]
        first, last = min(places, default=0), max(places, default=0)
        opened = max((entry.place for entry in operations if entry.op == "open" and entry.place < first), default=None)
        for logged in operations:
            if logged.place > last:
                break
            try:
                self._compare_beginning(logged, opened)
                repeated = await self.room.repeat(logged, self._find_call(logged))
                self._compare(logged, repeated)
            except ReplayDiffers:
                return
            except GuildError as error:
                self._add_difference(logged, f"the operation fails now: {error}")
                return

    def _compare_beginning(self, logged: LogEntry, opened: int | None) -> None:
        """Compare the inputs that the current file and the mail determine: room settings, kickoff, first messages."""
        if logged.place == opened:
            now = room_settings(self.workflow, self.values).open_arguments(
                [agent.name for agent in self.workflow.agents]
            )
            self._check_equal(logged, "the settings of the room", logged.arguments, now)
        if logged.actor.run == self.instance.id and logged.actor.key == KICKOFF_KEY:
            now = kickoff_message(self.workflow, self.values)
            self._check_equal(logged, "the kickoff", logged.arguments["parts"], now.as_list())
        if logged.op == "inbox_shown" and logged.actor.run in self._tree:
            self._compare_first_message(logged, self._tree[logged.actor.run])

    def _compare_first_message(self, logged: LogEntry, run: Run) -> None:
        recorded: str = run.request.input
        possible = list(self.room.read(lambda connection: self._first_messages(connection, logged, run)))
        if recorded not in possible:
            self._check_equal(logged, "the first message", recorded, possible[0])

    def _first_messages(self, connection: Connection, logged: LogEntry, run: Run) -> Iterator[str]:
        """Yield the possible first messages of a run. The state of the agent decided if it lists earlier effects."""
        room = self.room.room.id
        batch = shown_mail(connection, room, logged)
        more = logged.arguments.get("left", 0)
        instance, number = self.instance.id, run.ordinal + 1
        effects = self.store.read(lambda record: earlier_effects(record, instance, run.worker, number))
        for listed in ("", effects):
            yield run_input(connection, self.workflow, room, logged.actor.name, batch, more=more, effects=listed)

    def _find_call(self, logged: LogEntry) -> ToolCall | None:
        """Return the call that repeated an operation, with the arguments that the model gave, or None."""
        run, key = logged.actor.run, logged.actor.key
        if run is None or key is None or not self._is_run(run):
            return None
        entry = self._journal(run).last(key, ToolStarted)
        if entry is None or entry.data.tool != logged.op:
            return None
        return ToolCall(key=key, tool=entry.data.tool, arguments=entry.data.arguments)

    def _compare(self, logged: LogEntry, repeated: RepeatedOperation) -> None:
        self._check_equal(logged, f"the arguments of {logged.op}", logged.arguments, repeated.arguments)
        self._check_equal(logged, f"the effect of {logged.op}", logged.result, repeated.result)
        run, key = logged.actor.run, logged.actor.key
        if repeated.tool_result is not None and run is not None and key is not None:
            ended = self._journal(run).last(key, ToolEnded)
            if ended is not None:
                recorded = without_repeat_note(ended.data)
                self._check_equal(logged, f"the result of {logged.op}", recorded.text, repeated.tool_result.text)
        if logged.op == "open_owner_election":
            self._compare_ballots(logged, repeated)

    def _compare_ballots(self, logged: LogEntry, repeated: RepeatedOperation) -> None:
        room = self.room.room
        proposal = next(proposal for proposal in room.list_proposals() if proposal.id == repeated.result["id"])
        ballot = document_owner_election.ballot_text(self.workflow, proposal)
        for run in self._tree.values():
            if run.worker.startswith(VOTER_PREFIX):
                self._check_equal(logged, "the ballot", run.request.input, ballot)

    def _check_equal(self, logged: LogEntry, label: str, recorded: Any, now: Any) -> None:
        if recorded != now:
            raise self._add_difference(logged, describe_difference(label, recorded, now))

    def _add_difference(self, logged: LogEntry, text: str) -> ReplayDiffers:
        run = logged.actor.run if logged.actor.run and self._is_run(logged.actor.run) else self.instance.id
        self.differences.append(
            FoundDifference(at=logged.at, run=run, difference=Difference(step=self._find_step(run, logged), text=text))
        )
        return ReplayDiffers(text)

    def _find_step(self, run: str, logged: LogEntry) -> int:
        """Return the step of an operation in its run's journal: its call, or the last entry before it."""
        journal = self._journal(run)
        if logged.actor.key and (entries := journal.of(logged.actor.key)):
            return entries[-1].seq
        return max((entry.seq for entry in journal.entries if entry.at <= logged.at), default=0)

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
            raise NotFound(f"cannot replay {root.id}: the run is not a workflow")
        tree = self.history.tree(root.id)
        wanted = {child.id for child in self.history.tree(run)}
        steps = sum(len(self.history.entries(id)) for id in wanted)
        start_frame = recorded_frame(root.frame, frame)
        workflow, is_missing = self._current_workflow(instance, start_frame)
        try:
            params = self.history.purpose(root.id, WorkflowPurpose).params
            allowed = self.settings(start_frame).env
            values = start_values(workflow, tag=instance.tag, params=params, frame=start_frame, allowed=allowed)
        except GuildError as error:
            difference = Difference(step=0, text=f"the workflow cannot start now: {error}")
            return ReplayResult(run=root.id, steps=steps, difference=difference, worker_gone=is_missing)
        with scratch() as empty:
            room = RoomReplay(instance.room, self.store, empty)
            team = ReplayedTeam(
                instance=instance, workflow=workflow, values=values, room=room, store=self.store, history=self.history
            )
            current_root = replace(root, request=replace(root.request, input=recorded_input(workflow)))
            hooks, worker = replay_hooks(TOOLS), workflow_worker(workflow)
            result = await self.recordings.replay_one(current_root, frame, worker=worker, hooks=hooks, runtime=team)
            results = [result]
            if result.matches:
                results += [await self._replay_child(child, team, frame) for child in tree[1:] if child.id in wanted]
        differences = [*team.differences, *(self._find_time(result) for result in results if not result.matches)]
        is_missing = is_missing or any(result.worker_gone for result in results if result.run in wanted)
        of_wanted = (difference for difference in differences if difference.run in wanted)
        first = min(of_wanted, key=lambda difference: difference.at, default=None)
        if first is None:
            return ReplayResult(run=run, steps=steps, worker_gone=is_missing)
        return ReplayResult(run=first.run, steps=steps, difference=first.difference, worker_gone=is_missing)

    async def _replay_child(self, run: Run, team: ReplayedTeam, frame: Frame) -> ReplayResult:
        worker, hooks = team.worker_and_hooks(run) or (None, None)
        return await self.recordings.replay_one(run, frame, worker=worker, hooks=hooks)

    def _find_time(self, result: ReplayResult) -> FoundDifference:
        """Return the difference of a replayed run with its time."""
        assert result.difference is not None
        entries = self.history.entries(result.run)
        step = min(result.difference.step, len(entries) - 1)
        return FoundDifference(at=entries[step].at, run=result.run, difference=result.difference)

    def _current_workflow(self, instance: Instance, frame: Frame) -> tuple[Workflow, bool]:
        """Load the workflow from its current file. A recorded worker replaces a missing one.

        Return True as the second value if the file or a worker is missing.
        """
        recorded = from_record(instance.source, instance.definition)
        path = Path(instance.path)
        if not path.exists():
            return recorded, True
        missing: list[str] = []

        def find(name: str) -> Worker:
            try:
                return self.find(name, replace(frame, cwd=path.parent))
            except NotFound:
                for agent in recorded.agents:
                    if recorded.definition.agents[agent.name].worker == name:
                        missing.append(name)
                        return agent.worker
                raise

        return load(path, find), bool(missing)


def team_part(tree: Tree, store: Store) -> WorkflowPart | None:
    """Return the part of a script that describes the workflow itself, or None if the run is not a workflow."""
    root, journal = tree[0]
    instance = store.read(lambda connection: records.find_instance(connection, root.id))
    if instance is None:
        return None
    operations = store.read(lambda connection: room_records.log_entries(connection, instance.room))
    writer = _TestWriter(tree, operations)
    path, project = Path(instance.path), root.frame.root
    display_path = path.relative_to(project) if path.is_relative_to(project) else path
    fields: dict[str, Any] = {"workflow": str(display_path), "tag": instance.tag}
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
        arguments = started.data.arguments or {}
        result = ToolResult.from_dict(end.data.result)
        step: dict[str, Any] = {"command": arguments["command"]}
        if arguments["variables"]:
            step["variables"] = arguments["variables"]
        if result.is_error:
            yield {**step, "prints": result.text, "failed": True}
        else:
            yield {**step, "prints": ToolResult(content=result.content[:1]).text}


class _TestWriter:
    """Derives the data of a test from the log of a room."""

    def __init__(self, tree: Tree, operations: Sequence[LogEntry]) -> None:
        self._runs = {run.id: (run, journal) for run, journal in tree}
        places = [entry.place for entry in operations if entry.actor.run in self._runs]
        first, last = min(places, default=0), max(places, default=0)
        is_used = any(entry.place < first and entry.op != "open" for entry in operations)
        self.untestable = "its room has earlier messages (start with --fresh)" if is_used else None
        self._entries = [entry for entry in operations if first <= entry.place <= last]
        self._opened = [entry for entry in operations if entry.op == "open" and entry.place < max(first, 2)]
        self.notes: list[str] = []

    def order(self) -> Iterator[str | dict[str, Any]]:
        """Yield the places of `recorded_turn_order` and the messages of the user, in the order of the log."""
        for entry in self._entries:
            if entry.op == "send" and entry.actor.name == PERSON:
                message = "".join(text for text, _ in entry.arguments["parts"])
                yield {"person": message, **({"to": entry.arguments["to"]} if entry.arguments["to"] else {})}
            elif entry.op == "send" and (entry.actor.key or "").startswith("schedule/"):
                self.notes.append("messages of schedules (a test ends before they are due)")
            elif entry.op == "expire_proposals" and entry.result.get("ended"):
                self.notes.append("expired proposals (a test is faster than their timeout)")
            elif (place := self._find_place(entry)) is not None:
                yield place

    def _find_place(self, entry: LogEntry) -> str | None:
        """Return the place of an operation in the turn order, or None if it has none."""
        if (found := self._runs.get(entry.actor.run or "")) is None:
            return None
        run, journal = found
        label = run_label(run.worker, run.ordinal + 1)
        if entry.op == "inbox_shown":
            return f"{begin_label(label)} {entry.result.get('until', 0)}"
        if entry.op in ("acknowledge", "mark_dead"):
            return end_label(label)
        if entry.op in ROOM_TOOLS and entry.actor.key is not None:
            return f"{label} {call_label(entry.actor.key, _call_index(journal, entry.actor.key))} {entry.op}"
        return None

    def files(self) -> dict[str, str | None]:
        """Return the content of document files that existed before, as far as a run read it before changing it."""
        folder = self._opened[-1].arguments["documents"].partition("file:")[2] if self._opened else ""
        contents: dict[str, str | None] = {}
        seen: set[str] = set()
        for entry in self._entries:
            path = entry.result.get("path")
            if not folder or path is None or path in seen:
                continue
            seen.add(path)
            if "content" in entry.result:
                contents[str(Path(folder) / path)] = entry.result["content"]
            elif entry.result.get("new") is False:
                self.notes.append(f"the content of the document {path} before its first change")
        return contents


def _call_index(journal: Journal, key: str) -> int:
    """Return the index of a tool call among the calls of its model response."""
    response, _, id = key.partition("/")
    entry = journal.last(response, ModelAnswered)
    parts: list[dict[str, Any]] = entry.data.response["parts"] if entry else []
    calls = [part["tool_call_id"] for part in parts if part["part_kind"] == "tool-call"]
    return calls.index(id) if id in calls else 0
