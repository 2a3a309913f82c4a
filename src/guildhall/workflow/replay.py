"""Replay and export of workflows: run a recorded workflow again offline, and write it as a script with a test.

Does not execute tools or call models. Does not run the exported test (`hall.testrun`)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guildhall.core.errors import GuildError, NotFound, ReplayDiffers
from guildhall.models.model import VOTER
from guildhall.room import records as room_records
from guildhall.room.model import PERSON, LogEntry
from guildhall.room.replay import Repeated, RoomReplay, mail_shown
from guildhall.room.tools import TOOLS as ROOM_TOOLS
from guildhall.room.tools import room_tools
from guildhall.runs.execution.prepare import recorded_frame
from guildhall.runs.hooks import RunHooks, replay_hooks
from guildhall.runs.purpose import WorkflowPurpose
from guildhall.runs.record.entries import Ended, ModelAnswered, ToolEnded, ToolStarted
from guildhall.runs.replay.replay import Difference, Over, ReplayResult, describe_difference
from guildhall.runs.replay.script_export import WorkflowPart
from guildhall.runtimes.model import Assignment, Doors, Outcome
from guildhall.store.engine import scratch
from guildhall.tools.model import ToolCall, ToolResult
from guildhall.workflow import election, records
from guildhall.workflow.agent_turn import effects_before, result_of, run_input
from guildhall.workflow.loader import load, thawed
from guildhall.workflow.ordering import begins, call_place, ends, who
from guildhall.workflow.setup import TOOLS, run_steps
from guildhall.workflow.start import after_setup, asked_of, conducting, furnished, kickoff, values_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sqlalchemy import Connection

    from guildhall.core.config import Settings
    from guildhall.core.frame import Frame
    from guildhall.runs.model import Run
    from guildhall.runs.record.history import History
    from guildhall.runs.record.journal import Journal
    from guildhall.runs.replay.replay import Recordings
    from guildhall.store.engine import Store
    from guildhall.workers.model import Worker
    from guildhall.workflow.model import Values, Workflow
    from guildhall.workflow.target import Instance

    Tree = Sequence[tuple[Run, Journal]]


KICKOFF = "kickoff"


@dataclass(frozen=True, kw_only=True)
class Found:
    """Something that is not as it was, and when that was."""

    at: str
    run: str
    difference: Difference


@dataclass(kw_only=True)
class TeamAgain:
    """Replaces the team of a workflow in a replay: takes its setup and its room from the recording."""

    instance: Instance
    workflow: Workflow  # as its file is now
    values: Values
    room: RoomReplay
    store: Store  # of the recording, as is `history`
    history: History
    found: list[Found] = field(default_factory=list[Found])
    _journals: dict[str, Journal] = field(default_factory=dict[str, "Journal"])

    def __post_init__(self) -> None:
        self._tree = {run.id: run for run in self.history.tree(self.instance.id)}

    async def execute(self, assignment: Assignment, doors: Doors) -> Outcome:
        outputs = await run_steps(self.workflow, self.values, doors.tool)
        self.values = after_setup(self.workflow, self.values, outputs)
        await self._play_room()
        end = self._journal(self.instance.id).entries[-1].data
        if self.found or not isinstance(end, Ended) or end.status != "completed":
            raise Over
        output = result_of(self.workflow, self.instance, self.room.room, self.store)
        return Outcome(output=output, messages=[])

    # The agents

    def seated(self, run: Run) -> tuple[Worker, RunHooks] | None:
        """Return the current worker and the seat of a run, or None if the run has no seat, or no longer has one."""
        name = run.worker.removeprefix(VOTER)
        agent = next((agent for agent in self.workflow.agents if agent.name == name), None)
        if run.parent != self.instance.id or agent is None:
            return None
        if run.worker.startswith(VOTER):
            return election.voter(agent), replay_hooks(room_tools(election.TOOLS))
        tools = room_tools() if self.workflow.definition.context.enabled else ()
        return self.workflow.seated(agent, self.values), replay_hooks(tools)

    # The room

    async def _play_room(self) -> None:
        """Does all that was done in the room up to the end of this workflow, until something is not as it was."""
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
                self._differs(then, f"now it fails: {error}")
                return

    def _compare_beginning(self, then: LogEntry, opened: int | None) -> None:
        """What comes of the file of today, and of the mail: what the room is opened with and is told."""
        if then.place == opened:
            now = furnished(self.workflow, self.values).as_opened([agent.name for agent in self.workflow.agents])
            self._equal(then, "how the room is set up", then.arguments, now)
        if then.actor.run == self.instance.id and then.actor.key == KICKOFF:
            now = kickoff(self.workflow, self.values)
            self._equal(then, "the kickoff", then.arguments["said"], now.as_list())
        if then.op == "inbox_shown" and then.actor.run in self._tree:
            self._compare_first_message(then, self._tree[then.actor.run])

    def _compare_first_message(self, then: LogEntry, run: Run) -> None:
        said: str = run.request.input
        possible = list(self.room.read(lambda connection: self._first_messages(connection, then, run)))
        if said not in possible:
            self._equal(then, "the first message", said, possible[0])

    def _first_messages(self, connection: Connection, then: LogEntry, run: Run) -> Iterator[str]:
        """Yield the possible first messages of a run. The state of the agent decided if it lists earlier effects."""
        room = self.room.room.id
        batch = mail_shown(connection, room, then)
        more = then.arguments.get("left", 0)
        instance, number = self.instance.id, run.ordinal + 1
        effects = self.store.read(lambda record: effects_before(record, instance, run.worker, number))
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

    def _compare(self, then: LogEntry, made: Repeated) -> None:
        self._equal(then, f"what {then.op} was asked", then.arguments, made.arguments)
        self._equal(then, f"what came of {then.op}", then.result, made.result)
        run, key = then.actor.run, then.actor.key
        if made.given is not None and run is not None and key is not None:
            ended = self._journal(run).last(key, ToolEnded)
            if ended is not None:
                given = ToolResult.from_dict(ended.data.result)
                self._equal(then, f"the result of {then.op}", given.text, made.given.text)
        if then.op == "elect":
            self._compare_ballots(then, made)

    def _compare_ballots(self, then: LogEntry, made: Repeated) -> None:
        room = self.room.room
        proposal = next(one for one in room.proposals() if one.id == made.result["id"])
        for run in self._tree.values():
            if run.worker.startswith(VOTER):
                self._equal(then, "the ballot", run.request.input, election.ballot(self.workflow, proposal))

    def _equal(self, then: LogEntry, label: str, recorded: Any, now: Any) -> None:
        if recorded != now:
            raise self._differs(then, describe_difference(label, recorded, now))

    def _differs(self, then: LogEntry, text: str) -> ReplayDiffers:
        run = then.actor.run if then.actor.run and self._is_run(then.actor.run) else self.instance.id
        self.found.append(Found(at=then.at, run=run, difference=Difference(step=self._step(run, then), text=text)))
        return ReplayDiffers(text)

    def _step(self, run: str, then: LogEntry) -> int:
        """Where in the journal of its run an operation stands: at its call, else behind what came before it."""
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
    """Plays the workflows of a hall again."""

    store: Store
    history: History
    recordings: Recordings
    find: Callable[[str, Frame], Worker]
    settings: Callable[[Frame], Settings]

    async def replay(self, run: str, frame: Frame) -> ReplayResult:
        """Plays a workflow again, with all below it; of a run inside it shows only what is about that run."""
        root = self.history.get(self.history.get(run).root)
        instance = self.store.read(lambda connection: records.find(connection, root.id))
        if instance is None:
            raise NotFound(f"the run {root.id} is not a workflow")
        tree = self.history.tree(root.id)
        wanted = {one.id for one in self.history.tree(run)}
        steps = sum(len(self.history.entries(one)) for one in wanted)
        there = recorded_frame(root.frame, frame)
        workflow, gone = self._of_today(instance, there)
        try:
            params = self.history.purpose(root.id, WorkflowPurpose).params
            allowed = self.settings(there).env
            values = values_of(workflow, tag=instance.tag, params=params, frame=there, allowed=allowed)
        except GuildError as error:
            difference = Difference(step=0, text=f"now it cannot start: {error}")
            return ReplayResult(run=root.id, steps=steps, difference=difference, worker_gone=gone)
        with scratch() as empty:
            room = RoomReplay(instance.room, self.store, empty)
            team = TeamAgain(
                instance=instance,
                workflow=workflow,
                values=values,
                room=room,
                store=self.store,
                history=self.history,
            )
            again = replace(root, request=replace(root.request, input=asked_of(workflow)))
            hooks = replay_hooks(TOOLS)
            played = [
                await self.recordings.replay_one(again, frame, worker=conducting(workflow), hooks=hooks, runtime=team)
            ]
            if played[0].matches:
                played += [await self._play(one, team, frame) for one in tree[1:] if one.id in wanted]
        found = [*team.found, *(self._found(one) for one in played if not one.matches)]
        gone = gone or any(one.worker_gone for one in played if one.run in wanted)
        first = min((one for one in found if one.run in wanted), key=lambda one: one.at, default=None)
        if first is None:
            return ReplayResult(run=run, steps=steps, worker_gone=gone)
        return ReplayResult(run=first.run, steps=steps, difference=first.difference, worker_gone=gone)

    async def _play(self, run: Run, team: TeamAgain, frame: Frame) -> ReplayResult:
        worker, hooks = team.seated(run) or (None, None)
        return await self.recordings.replay_one(run, frame, worker=worker, hooks=hooks)

    def _found(self, played: ReplayResult) -> Found:
        assert played.difference is not None
        entries = self.history.entries(played.run)
        step = min(played.difference.step, len(entries) - 1)
        return Found(at=entries[step].at, run=played.run, difference=played.difference)

    def _of_today(self, instance: Instance, frame: Frame) -> tuple[Workflow, bool]:
        """The workflow as its file is today, with workers on record in the place of those that are gone."""
        then = thawed(instance.source, instance.definition)
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
    """What the script of a workflow has beyond the runs of its agents; None: the run is no workflow's."""
    root, journal = tree[0]
    instance = store.read(lambda connection: records.find(connection, root.id))
    if instance is None:
        return None
    operations = store.read(lambda connection: room_records.history(connection, instance.room))
    writer = _Writer(tree, operations)
    path, top = Path(instance.path), root.frame.root
    shown = path.relative_to(top) if path.is_relative_to(top) else path
    fields: dict[str, Any] = {"workflow": str(shown), "tag": instance.tag}
    purpose = root.purpose_as(WorkflowPurpose)
    if purpose is not None and purpose.params:
        fields["params"] = dict(purpose.params)
    if setup := list(_setup(journal)):
        fields["setup"] = setup
    fields["order"] = list(writer.order())
    files, tools = writer.files(), frozenset(ROOM_TOOLS)
    return WorkflowPart(fields=fields, files=files, notes=writer.notes, tools=tools, untestable=writer.untestable)


def _setup(journal: Journal) -> Iterator[dict[str, Any]]:
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


class _Writer:
    """Reads what a test needs to know from the log of a room."""

    def __init__(self, tree: Tree, operations: Sequence[LogEntry]) -> None:
        self._runs = {run.id: (run, journal) for run, journal in tree}
        own = [one.place for one in operations if one.actor.run in self._runs]
        first, last = min(own, default=0), max(own, default=0)
        is_used = any(one.place < first and one.op != "open" for one in operations)
        self.untestable = "its room was in use before: begin with an empty one (--fresh)" if is_used else None
        self._own = [one for one in operations if first <= one.place <= last]
        self._opened = [one for one in operations if one.op == "open" and one.place < max(first, 2)]
        self.notes: list[str] = []

    def order(self) -> Iterator[str | dict[str, Any]]:
        for one in self._own:
            if one.op == "send" and one.actor.name == PERSON:
                said = "".join(text for text, _ in one.arguments["said"])
                yield {"person": said, **({"to": one.arguments["to"]} if one.arguments["to"] else {})}
            elif one.op == "send" and (one.actor.key or "").startswith("schedule/"):
                self.notes.append("what a schedule said: a test is over before it is due")
            elif one.op == "expire" and one.result.get("ended"):
                self.notes.append("that the time of a proposal was up: a test is faster")
            elif (place := self._place(one)) is not None:
                yield place

    def _place(self, one: LogEntry) -> str | None:
        found = self._runs.get(one.actor.run or "")
        if found is None:
            return None
        run, journal = found
        mine = who(run.worker, run.ordinal + 1)
        if one.op == "inbox_shown":
            return f"{begins(mine)} {one.result.get('until', 0)}"
        if one.op in ("acknowledged", "buried"):
            return ends(mine)
        if one.op in ROOM_TOOLS and one.actor.key is not None:
            return f"{mine} {call_place(one.actor.key, _index(journal, one.actor.key))} {one.op}"
        return None

    def files(self) -> dict[str, str | None]:
        """Documents that were there before, as files, as far as somebody read them first."""
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
                self.notes.append(f"what the document {path} said before it was changed")
        return held


def _index(journal: Journal, key: str) -> int:
    """The how-manieth call of its answer it is."""
    answer, _, id = key.partition("/")
    entry = journal.last(answer, ModelAnswered)
    parts: list[dict[str, Any]] = entry.data.response["parts"] if entry else []
    calls = [part["tool_call_id"] for part in parts if part["part_kind"] == "tool-call"]
    return calls.index(id) if id in calls else 0
