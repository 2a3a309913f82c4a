"""Test runner: executes a test file in temporary copies, answers asks as recorded, and returns deviations.

An error of a test is a deviation too, so that the other tests continue.
The database of a test is in memory (`/dev/shm`) where that is possible.
Does not compare: `compare` does. Does not copy or replace parts: `hall` does.
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
from guildhall.core.config import load_settings
from guildhall.core.errors import GuildError, InvalidFile
from guildhall.core.events import AskOpenedData, Event, RunStartedData, ToolResultData, ToolUseData
from guildhall.core.frame import Frame
from guildhall.core.paths import Home
from guildhall.core.redaction import Redactor
from guildhall.hall.client.model import Deviation, Tested
from guildhall.hall.services.trust_files import code_of_test, refuse_programs, root_of_test
from guildhall.hall.services.workflow_files import load_workflow
from guildhall.hall.testrun.compare import Comparison, difference
from guildhall.hall.testrun.hall import TestHall, copy_home, copy_project, empty_folder, put_files
from guildhall.models.scripted.source import Script, ScriptSource
from guildhall.models.scripted.test_case import TIMED_OUT, Case, Reply
from guildhall.room.tools import TOOLS as ROOM_TOOLS
from guildhall.runs.model import Answer, Ask, RunRequest
from guildhall.runs.record.entries import LimitAsked, ToolAsked
from guildhall.runs.replay.normalize import Neutral
from guildhall.workers.code import Trust
from guildhall.workflow.start import values_of
from guildhall.workflow.target import Start

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

    from guildhall.core.yaml import Source
    from guildhall.hall.composition.hall import Hall
    from guildhall.runs.plan.model import Plan
    from guildhall.workers.model import Pin, Seen


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
            from guildhall.hall.testrun.compare import update_file

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
    from guildhall.hall.services.embedded import EmbeddedHall
    from guildhall.hall.testrun.hall import TestHall

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
            played = await play.play(EmbeddedHall(hall).runs.run(request, frame))
        else:
            start = await _staged(test, placed_case, stage, frame)
            played = await play.play(EmbeddedHall(hall).workflows.run(start, request, frame))
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
