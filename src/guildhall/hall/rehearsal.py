"""A hall for one test: a home of its own, a script in the place of every model, recorded results for the network.

Everything else is the hall that runs are made by: assembly, the doors, the tools, the journal.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from guildhall.core.config import WebSearch
from guildhall.core.errors import ToolUnavailable
from guildhall.hall.wiring import Hall
from guildhall.tools.define import TypedHandler
from guildhall.tools.model import Text, ToolResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from guildhall.core.config import Settings
    from guildhall.core.frame import Frame
    from guildhall.core.paths import Home
    from guildhall.models.model import Source
    from guildhall.models.script import Script, ScriptSource
    from guildhall.tools.builtin import Surroundings
    from guildhall.tools.mcp_client import Servers
    from guildhall.tools.model import Tool
    from guildhall.workers.model import Worker
    from guildhall.workers.trust import Pin

_NOWHERE = WebSearch(searxng="http://127.0.0.1:9")  # WebSearch is declared, and never asked


class RehearsalHall(Hall):
    """Makes the runs of a test. No key is known here, and no provider is ever asked."""

    def __init__(self, home: Home, project: Path, source: ScriptSource, trusted: Iterable[Pin]) -> None:
        """`trusted` are the files of the copied project that the person trusts in the real one."""
        super().__init__(home, environ={})
        self._project = project
        self._trusted = {pin.path: pin for pin in trusted}
        self._source = source
        self._recorded = _Recorded(source.script)

    def source(self, model: str, frame: Frame) -> Source:
        return self._source

    def pins(self) -> Mapping[Path, Pin]:
        return self._trusted

    def settings(self, frame: Frame) -> Settings:
        return super().settings(frame).model_copy(update={"web_search": _NOWHERE})

    def find_worker(self, name: str, frame: Frame) -> Worker:
        """A worker, if what it may write is in the copy of the project."""
        worker = super().find_worker(name, frame)
        for folder in worker.folders(frame):
            if folder.writable and not folder.path.is_relative_to(self._project):
                raise ToolUnavailable(
                    f"sandboxes.{folder.name}: {folder.path} is outside of the project, and the worker may write there",
                    where=worker.place,
                    hint="A test works on a copy of the project alone: use a folder inside it.",
                )
        return worker

    async def serve(self, worker: Worker, frame: Frame, surroundings: Surroundings) -> Servers:
        """No server is started or reached for a test."""
        if worker.definition.mcp_servers:
            raise ToolUnavailable(
                f"mcp_servers: {', '.join(worker.definition.mcp_servers)}: a test starts and reaches no servers",
                where=worker.place,
                hint="Test a worker without them.",
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
