"""A hall for one test: a home of its own, a script in place of every model, recorded results for the network.

Everything else is production: assembly, the doors, the tools, the journal.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from guildhall.core.config import WebSearch
from guildhall.core.errors import ToolUnavailable
from guildhall.hall.composition.hall import Hall
from guildhall.hall.composition.policy import RunPolicy
from guildhall.models.case import TIMED_OUT
from guildhall.room.model import Actor
from guildhall.runtimes.pydantic import PydanticRuntime
from guildhall.tools.define import TypedHandler
from guildhall.tools.model import Text, ToolResult
from guildhall.workflow.ordering import RecordedOrder, begins, ends, who
from guildhall.workflow.policy import WorkflowPolicy

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from pydantic_ai.messages import ModelResponse
    from pydantic_ai.usage import RequestUsage

    from guildhall.core.frame import Frame
    from guildhall.core.paths import Home
    from guildhall.models.case import Spoken
    from guildhall.models.model import OnText, Query
    from guildhall.models.script import Answer, Script, ScriptSource
    from guildhall.runs.outsiders import Outsiders
    from guildhall.tools.model import Execute, Tool, ToolCall
    from guildhall.workers.model import Worker
    from guildhall.workers.trust import Pin

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


def _last_step(run: Sequence[Answer]) -> int:
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
