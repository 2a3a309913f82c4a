"""A hall for one test: a home of its own, a script in the place of every model, recorded results for the network.

Everything else is the hall that runs are made by: assembly, the doors, the tools, the journal.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from guildhall.core.config import WebSearch
from guildhall.core.errors import ToolUnavailable
from guildhall.hall.composition.hall import Hall
from guildhall.hall.composition.lazy import lazy
from guildhall.room.model import Actor
from guildhall.tools.define import TypedHandler
from guildhall.tools.model import Text, ToolResult
from guildhall.workflow.pace import InOrder, begins, ends, who

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from pydantic_ai.messages import ModelResponse
    from pydantic_ai.usage import RequestUsage

    from guildhall.core.config import Settings
    from guildhall.core.frame import Frame
    from guildhall.core.paths import Home
    from guildhall.models.case import Spoken
    from guildhall.models.model import OnText, Query, Source
    from guildhall.models.script import Script, ScriptSource
    from guildhall.runtimes.model import Runtime
    from guildhall.tools.builtin import Surroundings
    from guildhall.tools.mcp_client import Servers
    from guildhall.tools.model import Execute, Tool, ToolCall
    from guildhall.workers.definition import RuntimeName
    from guildhall.workers.model import Worker
    from guildhall.workers.trust import Pin
    from guildhall.workflow.workflows import Workflows

_PAUSE = 0.01  # seconds before an agent is tried again
_DEBOUNCE = 0.02  # seconds that a team which is quiet stays together
_NOWHERE = WebSearch(searxng="http://127.0.0.1:9")  # WebSearch is declared, and never asked


class RehearsalHall(Hall):
    """Makes the runs of a test. No key is known here, and no provider is ever asked."""

    runs_commands = False
    keeps_apart = False
    starts_programs = False

    def __init__(self, home: Home, project: Path, source: ScriptSource, trusted: Iterable[Pin]) -> None:
        """`trusted` are the files of the copied project that the person trusts in the real one."""
        super().__init__(home, environ={})
        self._project = project
        self._trusted = {pin.path: pin for pin in trusted}
        self.pace = InOrder(source.script.test.order if source.script.test else [])
        self._source = PacedSource(source, self.pace)
        self._recorded = _Recorded(source.script)
        self._setup = list(source.script.test.setup) if source.script.test else []

    def source(self, model: str, frame: Frame, login: bool = False) -> Source:
        return self._source

    def replays(self, runtime: RuntimeName, frame: Frame) -> Runtime:
        """Whatever executes a worker, its doors are the same: a test needs no program of others."""
        return super().replays("pydantic", frame)

    @lazy
    def workflows(self) -> Workflows:
        """No command of a setup is run; agents move in the recorded order."""
        workflows = self.conducted(commands=self._commands, pace=self.pace, first_pause=_PAUSE, debounce=_DEBOUNCE)

        async def speak(spoken: Spoken) -> None:
            for room in workflows.rooms_alive():
                await room.send(spoken.person, Actor.person(), to=spoken.to)

        self.pace.speak = speak
        return workflows

    def _commands(self, **_: Any) -> Execute:
        async def recorded(tool: Tool, call: ToolCall) -> ToolResult:
            number = int(call.key.rpartition("/")[2])
            if number > len(self._setup):
                return ToolResult.error("A test runs no command, and the script holds nothing for this one.")
            step = self._setup[number - 1]
            if step.failed:
                return ToolResult.error(step.prints)
            return ToolResult(content=(Text(step.prints), Text("[exit code 0]")))

        return recorded

    def pins(self) -> Mapping[Path, Pin]:
        return self._trusted

    def settings(self, frame: Frame) -> Settings:
        return super().settings(frame).model_copy(update={"web_search": _NOWHERE})

    def find_worker(self, name: str, frame: Frame) -> Worker:
        """A worker, if what it may write is in the copy of the project."""
        worker = super().find_worker(name, frame)
        self.refuse_outside(worker, frame)
        return worker

    def refuse_outside(self, worker: Worker, frame: Frame) -> None:
        """Raises where a worker may write outside of the copy of the project."""
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

    async def serve(self, worker: Worker, frame: Frame, surroundings: Surroundings) -> Servers:
        """No server is started or reached for a test."""
        if worker.definition.mcp_servers:
            raise ToolUnavailable(
                f"mcp_servers: {', '.join(worker.definition.mcp_servers)}: a test starts and reaches no servers",
                where=worker.place,
                hint="Test a worker without them.",
            )
        if worker.definition.members or self.supply.outsiders(worker, frame).toolboxes:
            raise ToolUnavailable(
                "members: a test starts and reaches no members", where=worker.place, hint="Test a worker without them."
            )
        return await super().serve(worker, frame, surroundings)

    def instead(self, tool: Tool) -> Tool:
        """A tool that reaches the network gives what it gave when the test was recorded."""
        if "net" not in tool.capabilities:
            return tool

        async def recorded(**arguments: Any) -> ToolResult:
            return self._recorded.result(tool.name, arguments)

        if isinstance(tool.handler, TypedHandler):
            return replace(tool, handler=TypedHandler(recorded, tool.handler.form), runs_in="hall")
        return replace(tool, handler=recorded, runs_in="hall")


@dataclass(frozen=True)
class PacedSource:
    """The script's answers; the one with which a run of an agent ends comes when that is its turn."""

    script: ScriptSource
    pace: InOrder

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
        self.pace.done(begins(mine))
        run = self.script.script.run_of(query.worker, query.ordinal) or []
        if query.step + 1 == sum(answer.fail is None for answer in run):
            await self.pace.comes_to(ends(mine))
        return await self.script.answer(query, on_text)


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
