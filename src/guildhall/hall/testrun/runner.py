"""Test runner: executes a test in temporary copies, answers asks as recorded, and returns the deviations.

Assembly, doors, tools and journal are the same as in production. Models are scripted, network results are recorded. An
error in a test is a deviation too, so that the other tests continue. Does not start tool servers or members, does not
execute setup commands, and has no keys. Does not compare (see `hall.testrun.compare`).

Invariant: a test writes nothing outside of its copies.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guildhall.core import yaml
from guildhall.core.config import WebSearch, load_settings
from guildhall.core.errors import GuildError, InvalidFile, ToolUnavailable
from guildhall.core.events import AskOpenedData, Event, RunStartedData, ToolResultData, ToolUseData
from guildhall.core.paths import Home
from guildhall.core.redaction import Redactor
from guildhall.core.request_frame import Frame
from guildhall.hall.client.model import Deviation, TestResult
from guildhall.hall.composition.environment import RunPolicy
from guildhall.hall.composition.hall import Hall
from guildhall.hall.composition.workflow_preparation import load_workflow, prepare_workflow
from guildhall.hall.testrun import files
from guildhall.hall.testrun.compare import Comparison, difference, update_file
from guildhall.models.scripted.source import Script, ScriptSource
from guildhall.models.scripted.test_section import TIMED_OUT, Case, Reply, UserMessage
from guildhall.room.model import Actor
from guildhall.room.tools import TOOLS as ROOM_TOOLS
from guildhall.runs.assembly.memory import READ_TOOLS
from guildhall.runs.model import Answer, Ask, RunRequest
from guildhall.runs.record.entries import LimitAsked, ToolAsked
from guildhall.runs.replay.portable_text import Normalizer
from guildhall.runtimes.pydantic import PydanticRuntime
from guildhall.tools.definition import TypedHandler
from guildhall.tools.model import Execute, Text, Tool, ToolCall, ToolResult
from guildhall.workers.code_trust import Trust
from guildhall.workflow.instance import Start
from guildhall.workflow.recorded_turn_order import TurnOrder, begin_label, end_label, run_label
from guildhall.workflow.service import WorkflowPolicy
from guildhall.workflow.start_values import start_values

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse

    from guildhall.core.yaml import Source
    from guildhall.models.model import OnText, Query
    from guildhall.runs.assembly.callees import MemberTools
    from guildhall.runs.execution.preparation import Prepared
    from guildhall.runs.plan.model import Plan
    from guildhall.workers.model import FileTrust, Pin, Worker

_MEMORY_FOLDER = "/dev/shm"


async def run_test(file: Path, hall: Hall, *, update: bool) -> TestResult:
    """Execute a test and return its deviations. With `update`, write them to the test file."""
    started_s = hall.clock.monotonic()
    worker = trusted = None
    updated = False
    try:
        source = await asyncio.to_thread(yaml.read, file)
        script = yaml.validate(Script, source)
        if script.test is None:
            raise InvalidFile(
                "not a test: `test:` is missing", where=str(file), hint="Record a test: guild test add RUN"
            )
        worker = script.test.subject
        comparison = await _compare(source, script, script.test, hall)
        deviations = comparison.deviations
        if update and deviations:
            updated = await asyncio.to_thread(update_file, source, comparison)
            trusted = _trust_after_update(source, hall) if updated else None
    except GuildError as error:
        deviations = [Deviation(text=str(error))]
    seconds = hall.clock.monotonic() - started_s
    return TestResult(
        file=file, worker=worker, deviations=deviations, updated=updated, trusted=trusted, seconds=seconds
    )


def _trust_after_update(before: Source, hall: Hall) -> FileTrust | None:
    """Return the trust of an updated test file, or None if its earlier content was not trusted."""
    trust = Trust(hall.workers.pins())
    if any(seen.state != "trusted" for seen in trust.files(files.code_of_test(before, hall.home))):
        return None
    return trust.files(files.code_of_test(yaml.read(before.path), hall.home))[0]


async def _compare(source: Source, script: Script, case: Case, hall: Hall) -> Comparison:
    """Execute a test in temporary copies, and compare it with its script."""
    temporary = partial(tempfile.TemporaryDirectory[str], prefix="guild-test-", ignore_cleanup_errors=True)
    with temporary() as folder, temporary(dir=_MEMORY_FOLDER if os.access(_MEMORY_FOLDER, os.W_OK) else None) as record:
        top = await asyncio.to_thread(Path(folder).resolve)
        project, home = top / "project", TestHome(top / "home", record=Path(record))
        normalizer = Normalizer(project, home.path, Redactor(hall.environ), times=case.workflow is not None)
        try:
            root = files.root_of_test(source.path)
            await asyncio.to_thread(files.copy_project, root, project, excluded=hall.home.path)
            await asyncio.to_thread(files.copy_home, hall.home, home)
            await asyncio.to_thread(files.write_files, project, normalizer.restore(case.files))
            # Trust depends on the content, so a changed file in the copy needs trust too.
            root = root.resolve()
            pins = [replace(pin, path=project / pin.path.relative_to(root)) for pin in hall.workers.pins_below(root)]
            placed = Script.model_validate(normalizer.restore(script.model_dump(by_alias=True, exclude_unset=True)))
            check_plan = partial(files.check_programs_trusted, source, hall)
            test = await asyncio.to_thread(TestHall, home, project, source.path, placed, pins, check_plan)
            try:
                execution = _Execution(test, case)
                await execution.run(_frame(project, home, case, hall), placed.test or case)
                comparison = Comparison(script, case, test.hall.history, normalizer)
                comparison.compare(execution.root, stopped=bool(execution.deviations))
                comparison.deviations += execution.deviations
                return comparison
            finally:
                await test.hall.close()
        except GuildError as error:
            raise type(error)(
                normalizer.text(error.message), where=normalizer.text(error.where or "") or None, hint=error.hint
            ) from None


def _frame(project: Path, home: Home, case: Case, hall: Hall) -> Frame:
    """Return the frame of a test. It is interactive, because asks are answered at once."""
    allowed = frozenset(load_settings(home, project).env)
    frame = Frame.here(project / case.folder, hall.environ, allowed=allowed)
    return Frame(cwd=frame.cwd, root=project, env=frame.env, interactive=True, caller="test")


@dataclass
class TestHome(Home):
    """A temporary home. Its database may be in memory."""

    record: Path = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.database = self.record / "hall.db"


@dataclass
class _Execution:
    """Executes the run of a test and gives the recorded answers to asks."""

    test: TestHall
    case: Case
    root: str = ""  # id of the root run
    deviations: list[Deviation] = field(default_factory=list[Deviation])

    def __post_init__(self) -> None:
        self._replies = list(self.case.answers)
        self._runs: dict[str, list[str]] = {}  # by worker, in the order of their start

    async def run(self, frame: Frame, placed: Case) -> None:
        """Execute the run of the test. `placed`: the test with the paths of the copied project."""
        prepared = await self.test.prepare(placed, frame)
        async with aclosing(self.test.hall.main.stream(prepared)) as events:
            async for event in events:
                self.root = self.root or event.run
                if (started := event.read(RunStartedData)) is not None:
                    self._runs.setdefault(started["worker"], []).append(event.run)
                self._track_calls(event)
                opened = event.read(AskOpenedData)
                if opened is not None and not await self._answer(self.test.hall.asks.get(opened["ask"]["ask"])):
                    break
        self.deviations += [
            Deviation(
                text=f"no ask about {reply.tool or ('the loop' if reply.loop else f'the limit {reply.limit}')}: "
                f"the recorded answer {reply.answer!r} was not used"
            )
            for reply in self._replies
            if not self.deviations
        ]

    def _track_calls(self, event: Event) -> None:
        """Track tool calls outside of the room, because an agent with an active call is not late."""
        use = event.read(ToolUseData)
        call = use or event.read(ToolResultData)
        if call is not None and call["tool"] not in ROOM_TOOLS:
            is_started, id = use is not None and not use.get("refused"), f"{event.run}/{call['id']}"
            (self.test.order.active_calls.add if is_started else self.test.order.active_calls.discard)(id)

    async def _answer(self, ask: Ask) -> bool:
        """Give the recorded answer to an ask. Return False if the run cannot continue."""
        reply = self._find_reply(ask)
        if reply is None and ask.kind != "limit":
            text = difference("no answer is recorded for this ask", "", ask.question.text)
            self.deviations.append(Deviation(text=text))
            return False
        if reply is not None and reply.loop and reply.answer == TIMED_OUT:
            return True  # the recorded workflow ended while the ask was open
        if reply is not None and reply.answer == TIMED_OUT:
            await self.test.hall.asks.expire(ask)
            return True
        answer = Answer(choice="no") if reply is None else Answer(choice=reply.answer, note=reply.note)
        try:
            await self.test.hall.asks.answer(ask.id, answer)
            self.test.order.loop_answers -= ask.kind == "loop"
        except GuildError as error:
            self.deviations.append(Deviation(text=f"{error.message}\n{error.hint or ''}".rstrip()))
            return False
        return True

    def _find_reply(self, ask: Ask) -> Reply | None:
        """Return and remove the recorded answer to an ask, or None."""
        entry = self.test.hall.history.journal(ask.run).last(ask.key, ToolAsked, LimitAsked)
        asked = entry.data if entry else None
        tool = asked.tool if isinstance(asked, ToolAsked) else None
        subject = (tool, asked.limit if isinstance(asked, LimitAsked) else None, ask.kind == "loop")
        worker = self.test.hall.history.get(self.root).worker
        for index, reply in enumerate(self._replies):
            runs = self._runs.get(reply.worker or worker, [])[reply.run - 1 :]
            if runs[:1] == [ask.run] and (reply.tool, reply.limit, reply.loop) == subject:
                return self._replies.pop(index)
        return None


_RETRY_DELAY_S = 0.01
_DEBOUNCE_S = 0.02
_UNREACHABLE = WebSearch(searxng="http://127.0.0.1:9")  # makes the tool WebSearch available; it is never called


class TestHall:
    """A hall without keys and providers, for one test."""

    def __init__(
        self,
        home: Home,
        project: Path,
        file: Path,
        script: Script,
        pins: Iterable[Pin],
        check_plan: Callable[[Plan], None],
    ) -> None:
        """`pins`: the trusted files of the copied project. `check_plan`: raises if the test must not execute a plan."""
        test = script.test
        self._project = project
        self._file = file
        self._check_plan = check_plan
        self._results = [
            (call.call, call.arguments, call.result)
            for runs in script.workers.values()
            for answers in runs
            for answer in answers
            for call in answer.all_calls
            if call.result is not None
        ]
        self._setup = list(test.setup) if test else []
        self.order = TurnOrder(test.order if test else [])
        self.order.post = self._send_message
        replies = test.answers if test else []
        self.order.loop_answers = sum(reply.loop and reply.answer != TIMED_OUT for reply in replies)
        self.order.leaves_loop = any(reply.loop and reply.answer == TIMED_OUT for reply in replies)
        source = OrderedSource(file, script, order=self.order)
        policy = RunPolicy(
            runtime_of=lambda runtime, frame: PydanticRuntime(),
            source_of=lambda model, frame, login: source,
            pins={pin.path: pin for pin in pins},
            adjust_settings=lambda settings: settings.model_copy(update={"web_search": _UNREACHABLE}),
            check_worker=self._check_worker,
            check_servers=_check_no_servers,
            had_memory=lambda worker: test is not None and worker.name in test.shown and test.shown[worker.name].memory,
            replace_tool=self._replace_tool,
            may_use_workflow_databases=False,
            workflows=WorkflowPolicy(
                first_pause_s=_RETRY_DELAY_S, debounce_s=_DEBOUNCE_S, order=self.order, commands=self._recorded_commands
            ),
        )
        self.hall = Hall(home, environ={}, policy=policy)

    async def prepare(self, case: Case, frame: Frame) -> Prepared:
        """Create the run of the test. Raise if its worker or its agents must not be executed."""
        hall, planner = self.hall, self.hall.workers.planner
        attached: dict[str, Any] = {"attachments": tuple(case.attachments)} if case.attachments else {}
        request = RunRequest(
            **attached,
            worker=case.subject,
            input=case.input or "",
            override_model=f"script:{self._file.absolute()}",
            max_turns=case.max_turns,
            max_tokens=case.max_tokens,
            max_budget_usd=case.max_budget_usd,
            budget=case.budget,
            mode=case.mode,
        )
        if case.workflow is None:
            self._check_plan(await planner.plan(hall.workers.find(request.worker, frame), frame))
            return await hall.main.prepare(request, frame)
        start = Start(file=str(self._project / case.subject), tag=case.tag, params=case.params)
        workflow = load_workflow(hall, start.file, frame)
        workflow_frame = workflow.frame(frame)
        for agent in workflow.agents:
            self._check_worker(agent.worker, workflow_frame)
            self._check_plan(await planner.plan(agent.worker, workflow_frame))
        allowed = hall.settings(workflow_frame).env
        values = start_values(workflow, tag=case.tag, params=case.params, frame=workflow_frame, allowed=allowed)
        # The room was empty when the test was recorded.
        await asyncio.to_thread(files.delete_folder, workflow.room_folder(values), self._project)
        await asyncio.to_thread(files.write_files, self._project, case.files)
        return (await prepare_workflow(hall, start, request, frame))[1]

    async def _send_message(self, message: UserMessage) -> None:
        for room in self.hall.main.workflows.active_rooms():
            await room.send(message.person, Actor.person(), to=message.to)

    def _recorded_commands(self, **_: Any) -> Execute:
        """Return an executor of setup commands that returns their recorded output."""

        async def replay_command(tool: Tool, call: ToolCall) -> ToolResult:
            number = int(call.key.rpartition("/")[2])
            if number > len(self._setup):
                return ToolResult.error("A test executes no commands, and the script has no output for this one.")
            step = self._setup[number - 1]
            if step.failed:
                return ToolResult.error(step.prints)
            return ToolResult(content=(Text(step.prints), Text("[exit code 0]")))

        return replay_command

    def _check_worker(self, worker: Worker, frame: Frame) -> None:
        """Raise if a worker may write outside of the copy of the project."""
        writable = [
            (f"sandboxes.{folder.name}", folder.path, "worker")
            for folder in worker.sandbox_folders(frame)
            if folder.is_writable
        ]
        if worker.workdir is not None:
            writable.insert(0, ("workdir", worker.workdir, f"agent {worker.name}"))
        for name, path, writer in writable:
            if not path.is_relative_to(self._project):
                raise ToolUnavailable(
                    f"{name}: {path} is outside of the project, and the {writer} may write there",
                    where=worker.place,
                    hint="Use a folder inside the project: a test works on a copy of the project only.",
                )

    def _replace_tool(self, tool: Tool) -> Tool:
        """Return the tool, or one that returns recorded results if the tool uses the network or reads memory."""
        reads_memory = tool.name in READ_TOOLS
        if "net" not in tool.capabilities and not reads_memory:
            return tool

        async def replay_call(**arguments: Any) -> ToolResult:
            for index, (name, recorded, result) in enumerate(self._results):
                if name == tool.name and isinstance(recorded, dict) and recorded.items() <= arguments.items():
                    del self._results[index]  # each result is used once
                    return ToolResult(content=(Text(result.text),), is_error=result.is_error)
            if reads_memory:  # a test written by hand can read what it has written
                return await tool.handler(**arguments)
            return ToolResult.error("A test uses no network, and the script has no `result` for this call.")

        if isinstance(tool.handler, TypedHandler):
            return replace(tool, handler=TypedHandler(replay_call, tool.handler.form), runs_in="hall")
        return replace(tool, handler=replay_call, runs_in="hall")


def _check_no_servers(worker: Worker, members: MemberTools) -> None:
    """Raise if a worker names tool servers or members, because a test cannot use them."""
    if worker.definition.mcp_servers:
        raise ToolUnavailable(
            f"mcp_servers: a test cannot use servers ({', '.join(worker.definition.mcp_servers)})",
            where=worker.place,
            hint="Test a worker without mcp_servers.",
        )
    if worker.definition.members or members.toolboxes:
        raise ToolUnavailable(
            "members: a test cannot use members", where=worker.place, hint="Test a worker without members."
        )


@dataclass(frozen=True)
class OrderedSource(ScriptSource):
    """A script whose last answer for a run is delayed until the recorded order lets the run end."""

    order: TurnOrder = field(kw_only=True)

    async def answer(self, query: Query, on_text: OnText) -> ModelResponse:
        label = run_label(query.worker, query.ordinal + 1)
        self.order.finish(begin_label(label))
        answers = self.script.find_run(query.worker, query.ordinal) or []
        step_count = sum(answer.fail is None for answer in answers)
        ends_with_failure = bool(answers) and answers[-1].fail is not None
        last_step = step_count if ends_with_failure else step_count - 1  # all failures at the end are one step
        if query.step >= last_step and not (answers and (answers[-1].call or answers[-1].calls)):
            await self.order.wait_for(end_label(label))
        return await super().answer(query, on_text)
