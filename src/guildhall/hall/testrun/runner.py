"""Test runner: executes a test file in temporary copies, answers asks as recorded, and returns deviations.

Assembly, doors, tools and journal are the parts of production. Models are scripted, network results are recorded.
An error of a test is a deviation too, so that the other tests continue.
Does not start tool servers or members, does not execute setup commands, and has no keys. Does not compare: `compare`
does.

Invariant: a test writes nothing outside of its copies.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guildhall.core import yaml
from guildhall.core.config import WebSearch, load_settings
from guildhall.core.errors import GuildError, InvalidFile, ToolUnavailable
from guildhall.core.events import AskOpenedData, Event, RunStartedData, ToolResultData, ToolUseData
from guildhall.core.frame import Frame
from guildhall.core.paths import Home
from guildhall.core.redaction import Redactor
from guildhall.hall.client.model import Deviation, Tested
from guildhall.hall.composition.environment import RunPolicy
from guildhall.hall.composition.hall import Hall
from guildhall.hall.composition.workflow_files import load_workflow, prepare_workflow
from guildhall.hall.testrun.compare import Comparison, difference, update_file
from guildhall.hall.testrun.files import (
    code_of_test,
    copy_home,
    copy_project,
    empty_folder,
    put_files,
    refuse_programs,
    root_of_test,
)
from guildhall.models.scripted.source import Answer as ScriptedAnswer
from guildhall.models.scripted.source import Script, ScriptSource
from guildhall.models.scripted.test_case import TIMED_OUT, Case, Reply, Spoken
from guildhall.room.model import Actor
from guildhall.room.tools import TOOLS as ROOM_TOOLS
from guildhall.runs.model import Answer, Ask, RunRequest
from guildhall.runs.record.entries import LimitAsked, ToolAsked
from guildhall.runs.replay.normalize import Neutral
from guildhall.runtimes.pydantic import PydanticRuntime
from guildhall.tools.definition import TypedHandler
from guildhall.tools.model import Execute, Text, Tool, ToolCall, ToolResult
from guildhall.workers.trust import Pin, Seen, Trust
from guildhall.workflow.ordering import RecordedOrder, begins, ends, who
from guildhall.workflow.service import WorkflowPolicy
from guildhall.workflow.start import values_of
from guildhall.workflow.target import Start

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence

    from pydantic_ai.messages import ModelResponse
    from pydantic_ai.usage import RequestUsage

    from guildhall.core.yaml import Source
    from guildhall.models.model import OnText, Query
    from guildhall.runs.assembly.callees import Outsiders
    from guildhall.runs.plan.model import Plan
    from guildhall.workers.model import Worker

_IN_MEMORY = "/dev/shm"  # where a file is never waited for


async def tested(file: Path, hall: Hall, *, update: bool) -> Tested:
    """What comes of a test. Whatever is wrong with it is a deviation too: the others are tested all the same."""
    began = hall.clock.monotonic()
    worker = trusted = None
    updated = False
    try:
        source = await asyncio.to_thread(yaml.read, file)
        script = yaml.validate(Script, source)
        if script.test is None:
            raise InvalidFile("there is no `test:` in it", where=str(file), hint="`guild script RUN` writes one.")
        worker = script.test.subject
        comparison = await _compared(source, script, script.test, hall)
        deviations = comparison.deviations
        if update and deviations:
            updated = await asyncio.to_thread(update_file, source, comparison)
            trusted = _still_trusted(source, hall) if updated else None
    except GuildError as error:
        deviations = [Deviation(text=str(error))]
    seconds = hall.clock.monotonic() - began
    return Tested(file=file, worker=worker, deviations=deviations, updated=updated, trusted=trusted, seconds=seconds)


def _still_trusted(before: Source, hall: Hall) -> Seen | None:
    """The file of a test that was updated, if it was trusted: what it does is the same."""
    trust = Trust(hall.workers.pins())
    if any(seen.standing != "trusted" for seen in trust.seen(code_of_test(before, hall.home))):
        return None
    return trust.seen(code_of_test(yaml.read(before.path), hall.home))[0]


async def _compared(source: Source, script: Script, case: Case, hall: Hall) -> Comparison:
    file = source.path
    with _temporary() as folder, _temporary(_IN_MEMORY if os.access(_IN_MEMORY, os.W_OK) else None) as record:
        top = await asyncio.to_thread(Path(folder).resolve)
        project, home = top / "project", TestHome(top / "home", record=Path(record))
        neutral = Neutral(project, home.path, Redactor(hall.environ), times=case.workflow is not None)
        try:
            await asyncio.to_thread(_set_up, file, hall.home, project, home, neutral.restored(case.files))
            trusted = _trusted(file, hall, project)
            stage = _Stage(project, home, neutral, hall.environ, trusted, partial(refuse_programs, source, hall))
            return await _performed(file, script, case, stage)
        except GuildError as error:
            raise type(error)(
                neutral.text(error.message), where=neutral.text(error.where or "") or None, hint=error.hint
            ) from None


def _set_up(file: Path, real: Home, project: Path, home: Home, files: Mapping[str, str | None]) -> None:
    """Everything as it is when the test begins."""
    copy_project(root_of_test(file), project, without=real.path)
    copy_home(real, home)
    put_files(project, files)


def _trusted(file: Path, hall: Hall, project: Path) -> list[Pin]:
    """What the person trusts of the project, as it lies in the copy: by content, so that a change is one there too."""
    root = root_of_test(file).resolve()
    return [replace(pin, path=project / pin.path.relative_to(root)) for pin in hall.workers.pins_below(root)]


def _temporary(place: str | None = None) -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="guild-test-", dir=place, ignore_cleanup_errors=True)


@dataclass(frozen=True)
class TestHome(Home):
    """A home that nobody will come back to: its record need not outlast the machine, and is not waited for."""

    record: Path = field(kw_only=True)

    @property
    def database(self) -> Path:
        return self.record / "hall.db"


@dataclass(frozen=True)
class _Stage:
    """Where a test plays."""

    project: Path
    home: Home
    neutral: Neutral
    environ: Mapping[str, str]
    trusted: Sequence[Pin]
    permit: Callable[[Plan], None]  # raises where the test may not do what the plan says

    def frame(self, folder: str) -> Frame:
        allowed = frozenset(load_settings(self.home, self.project).env)
        there = Frame.here(self.project / folder, self.environ, allowed=allowed)
        # As if a person were there: asks are answered at once, and the run does not go to sleep over them.
        return Frame(cwd=there.cwd, root=self.project, env=there.env, interactive=True, caller="test")


async def _performed(file: Path, script: Script, case: Case, stage: _Stage) -> Comparison:
    data = script.model_dump(by_alias=True, exclude_unset=True)
    placed = Script.model_validate(stage.neutral.restored(data))
    test = await asyncio.to_thread(TestHall, stage.home, stage.project, ScriptSource(file, placed), stage.trusted)
    hall = test.hall
    try:
        placed_case = placed.test or case
        request, frame = _request(file, placed_case), stage.frame(case.folder)
        play = _Play(test, case)
        if case.workflow is None:
            stage.permit(await hall.workers.planner.plan(hall.workers.find(request.worker, frame), frame))
            prepared = await hall.main.prepare(request, frame)
        else:
            start = await _staged(test, placed_case, stage, frame)
            _, prepared = await prepare_workflow(hall, start, request, frame)
        played = await play.play(hall.main.stream(prepared, stays=False))
        comparison = Comparison(script, case, hall.history, stage.neutral)
        comparison.compare(played.run, stopped=bool(played.deviations))
        comparison.deviations += played.deviations
        return comparison
    finally:
        await hall.close()


async def _staged(test: TestHall, case: Case, stage: _Stage, frame: Frame) -> Start:
    """A workflow that can be started: it is permitted, and its room is as empty as it was."""
    hall = test.hall
    start = Start(file=str(stage.project / case.subject), tag=case.tag, params=case.params)
    workflow = load_workflow(hall, start.file, frame)
    there = workflow.frame(frame)
    for agent in workflow.agents:
        test.check_worker(agent.worker, there)
        stage.permit(await hall.workers.planner.plan(agent.worker, there))
    allowed = hall.settings(there).env
    values = values_of(workflow, tag=case.tag, params=case.params, frame=there, allowed=allowed)
    await asyncio.to_thread(empty_folder, workflow.room_folder(values), stage.project)
    await asyncio.to_thread(put_files, stage.project, case.files)
    return start


def _request(file: Path, case: Case) -> RunRequest:
    attached: dict[str, Any] = {"attachments": tuple(case.attachments)} if case.attachments else {}
    return RunRequest(
        **attached,
        worker=case.subject,
        input=case.input or "",
        override_model=f"script:{file.absolute()}",
        max_turns=case.max_turns,
        max_tokens=case.max_tokens,
        max_budget_usd=case.max_budget_usd,
        budget=case.budget,
        mode=case.mode,
    )


@dataclass
class _Play:
    """Runs the worker, and answers for the person as the test says."""

    test: TestHall
    case: Case
    run: str = ""
    deviations: list[Deviation] = field(default_factory=list[Deviation])

    def __post_init__(self) -> None:
        self._replies = list(self.case.answers)
        self._runs: dict[str, list[str]] = {}  # of each worker, in the order in which they began

    async def play(self, stream: AsyncGenerator[Event]) -> _Play:
        async with aclosing(stream) as events:
            async for event in events:
                self.run = self.run or event.run
                if (started := event.read(RunStartedData)) is not None:
                    self._runs.setdefault(started["worker"], []).append(event.run)
                self._note_under_way(event)
                if (opened := event.read(AskOpenedData)) is not None:
                    ask = self.test.hall.asks.get(opened["ask"]["ask"])
                    if not await self._answer(ask):
                        break
        self.deviations += [
            Deviation(text=f"nobody asked about {_about(reply)}: the answer {reply.answer!r} was not used")
            for reply in self._replies
            if not self.deviations
        ]
        return self

    def _note_under_way(self, event: Event) -> None:
        """Calls beyond the room's take their time: meanwhile nobody is said to be late."""
        use = event.read(ToolUseData)
        call = use or event.read(ToolResultData)
        if call is not None and call["tool"] not in ROOM_TOOLS:
            made, id = use is not None and not use.get("refused"), f"{event.run}/{call['id']}"
            (self.test.order.under_way.add if made else self.test.order.under_way.discard)(id)

    async def _answer(self, ask: Ask) -> bool:
        """Says what was said then; whether there was anything to say."""
        reply = self._reply(ask)
        if reply is None and ask.kind != "limit":
            shown = difference("the run asks something that no answer is recorded for", "", _question(ask))
            self.deviations.append(Deviation(text=shown))
            return False
        if reply is not None and reply.loop and reply.answer == TIMED_OUT:
            return True  # the recorded team ended while the question was open
        if reply is not None and reply.answer == TIMED_OUT:
            await self.test.hall.asks.expire(ask)
            return True
        said = Answer(choice="no") if reply is None else Answer(choice=reply.answer, note=reply.note)
        try:
            await self.test.hall.asks.answer(ask.id, said)
            self.test.order.loop_answers -= ask.kind == "loop"
        except GuildError as error:
            self.deviations.append(Deviation(text=f"{error.message}\n{error.hint or ''}".rstrip()))
            return False
        return True

    def _reply(self, ask: Ask) -> Reply | None:
        entry = self.test.hall.history.journal(ask.run).last(ask.key, ToolAsked, LimitAsked)
        asked = entry.data if entry else None
        tool = asked.tool if isinstance(asked, ToolAsked) else None
        about = (tool, asked.limit if isinstance(asked, LimitAsked) else None, ask.kind == "loop")
        mine = self.test.hall.history.get(self.run).worker
        for place, reply in enumerate(self._replies):
            runs = self._runs.get(reply.worker or mine, [])[reply.run - 1 :]
            if runs[:1] == [ask.run] and (reply.tool, reply.limit, reply.loop) == about:
                return self._replies.pop(place)
        return None


def _about(reply: Reply) -> str:
    return reply.tool or ("the loop" if reply.loop else f"the limit {reply.limit}")


def _question(ask: Ask) -> str:
    return f"{ask.question.title}\n{ask.question.body}"


_PAUSE = 0.01  # seconds before an agent is tried again
_DEBOUNCE = 0.02  # seconds that a team which is quiet stays together
_NOWHERE = WebSearch(searxng="http://127.0.0.1:9")  # WebSearch is declared, and never asked


class TestHall:
    """Opens a hall for a test. It knows no key and asks no provider."""

    def __init__(self, home: Home, project: Path, source: ScriptSource, trusted: Iterable[Pin]) -> None:
        """`trusted`: the files of the copied project that the user trusts in the real one."""
        test = source.script.test
        self._project = project
        self._recorded = _Recorded(source.script)
        self._setup = list(test.setup) if test else []
        self.order = RecordedOrder(test.order if test else [])
        self.order.speak = self._speak
        replies = test.answers if test else []
        self.order.loop_answers = sum(reply.loop and reply.answer != TIMED_OUT for reply in replies)
        self.order.leaves_loop = any(reply.loop and reply.answer == TIMED_OUT for reply in replies)
        ordered = OrderedSource(source, self.order)
        policy = RunPolicy(
            runtime_of=lambda runtime, frame: PydanticRuntime(),
            source_of=lambda model, frame, login: ordered,
            pins={pin.path: pin for pin in trusted},
            adjust_settings=lambda settings: settings.model_copy(update={"web_search": _NOWHERE}),
            check_worker=self.check_worker,
            check_servers=_refuse_servers,
            replace_tool=self._replace_tool,
            may_use_workflow_databases=False,
            workflows=WorkflowPolicy(
                first_pause=_PAUSE, debounce=_DEBOUNCE, order=self.order, commands=self._recorded_commands
            ),
        )
        self.hall = Hall(home, environ={}, policy=policy)

    async def _speak(self, spoken: Spoken) -> None:
        for room in self.hall.workflows.rooms_alive():
            await room.send(spoken.person, Actor.person(), to=spoken.to)

    def _recorded_commands(self, **_: Any) -> Execute:
        """Return what answers setup commands: their recorded output. No command is executed."""

        async def recorded(tool: Tool, call: ToolCall) -> ToolResult:
            number = int(call.key.rpartition("/")[2])
            if number > len(self._setup):
                return ToolResult.error("A test runs no command, and the script holds nothing for this one.")
            step = self._setup[number - 1]
            if step.failed:
                return ToolResult.error(step.prints)
            return ToolResult(content=(Text(step.prints), Text("[exit code 0]")))

        return recorded

    def check_worker(self, worker: Worker, frame: Frame) -> None:
        """Raise if a worker may write outside of the copy of the project."""
        if worker.workdir is not None and not worker.workdir.is_relative_to(self._project):
            raise ToolUnavailable(
                f"workdir: {worker.workdir} is outside of the project, and the agent {worker.name} may write there",
                where=worker.place,
                hint="A test works on a copy of the project alone: use a folder inside it.",
            )
        for folder in worker.folders(frame):
            if folder.writable and not folder.path.is_relative_to(self._project):
                raise ToolUnavailable(
                    f"sandboxes.{folder.name}: {folder.path} is outside of the project, and the worker may write there",
                    where=worker.place,
                    hint="A test works on a copy of the project alone: use a folder inside it.",
                )

    def _replace_tool(self, tool: Tool) -> Tool:
        """Return a tool that gives the recorded results, if the tool reaches the network."""
        if "net" not in tool.capabilities:
            return tool

        async def recorded(**arguments: Any) -> ToolResult:
            return self._recorded.result(tool.name, arguments)

        if isinstance(tool.handler, TypedHandler):
            return replace(tool, handler=TypedHandler(recorded, tool.handler.form), runs_in="hall")
        return replace(tool, handler=recorded, runs_in="hall")


def _refuse_servers(worker: Worker, members: Outsiders) -> None:
    """Raise if a worker names tool servers or members: a test starts and reaches none."""
    if worker.definition.mcp_servers:
        raise ToolUnavailable(
            f"mcp_servers: {', '.join(worker.definition.mcp_servers)}: a test starts and reaches no servers",
            where=worker.place,
            hint="Test a worker without them.",
        )
    if worker.definition.members or members.toolboxes:
        raise ToolUnavailable(
            "members: a test starts and reaches no members", where=worker.place, hint="Test a worker without them."
        )


@dataclass(frozen=True)
class OrderedSource:
    """The script's answers. The last answer or failure of an agent's run is delayed until the run's turn to end."""

    script: ScriptSource
    order: RecordedOrder

    @property
    def name(self) -> str:
        return self.script.name

    def cost(self, usage: RequestUsage) -> float | None:
        return self.script.cost(usage)

    def takes(self, media_type: str) -> bool:
        return self.script.takes(media_type)

    def upstream(self, api: str) -> None:
        return None

    async def answer(self, query: Query, on_text: OnText) -> ModelResponse:
        mine = who(query.worker, query.ordinal + 1)
        self.order.done(begins(mine))
        run = self.script.script.run_of(query.worker, query.ordinal) or []
        if query.step >= _last_step(run):
            await self.order.comes_to(ends(mine))
        return await self.script.answer(query, on_text)


def _last_step(run: Sequence[ScriptedAnswer]) -> int:
    """Return the step of a run's last answer. If the run ends with failures, these are its last step."""
    answers = sum(answer.fail is None for answer in run)
    return answers if run and run[-1].fail is not None else answers - 1


class _Recorded:
    """The results that a script holds, each given once."""

    def __init__(self, script: Script) -> None:
        self._results = [
            (call.call, call.arguments, call.result)
            for runs in script.workers.values()
            for answers in runs
            for answer in answers
            for call in answer.every_call
            if call.result is not None
        ]

    def result(self, tool: str, arguments: dict[str, Any]) -> ToolResult:
        for place, (name, given, result) in enumerate(self._results):
            if name == tool and isinstance(given, dict) and given.items() <= arguments.items():
                del self._results[place]
                return ToolResult(content=(Text(result.text),), is_error=result.is_error)
        return ToolResult.error("A test uses no network, and the script holds no `result` for this call.")
