"""Hall of a test: runs on copies of project and home, with scripted models and recorded network results.

Assembly, doors, tools and journal are the parts of production.
The copy leaves out version control, package folders and links that lead out of the project. It has at most 10,000 files
and 200 MB.
Does not start tool servers or members, does not execute setup commands, and has no keys.

Invariant: a test writes nothing outside of its copies.
"""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guildhall.core.config import WebSearch
from guildhall.core.errors import Conflict, ToolUnavailable
from guildhall.hall.composition.environment import RunPolicy
from guildhall.hall.composition.hall import Hall
from guildhall.models.scripted.test_case import TIMED_OUT, Spoken
from guildhall.room.model import Actor
from guildhall.runtimes.pydantic import PydanticRuntime
from guildhall.tools.definition import TypedHandler
from guildhall.tools.model import Execute, Text, Tool, ToolCall, ToolResult
from guildhall.workers.package_store import ASIDE
from guildhall.workflow.ordering import RecordedOrder, begins, ends, who
from guildhall.workflow.service import WorkflowPolicy

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pydantic_ai.messages import ModelResponse
    from pydantic_ai.usage import RequestUsage

    from guildhall.core.frame import Frame
    from guildhall.core.paths import Home
    from guildhall.models.model import OnText, Query
    from guildhall.models.scripted.source import Answer, Script, ScriptSource
    from guildhall.runs.assembly.callees import Outsiders
    from guildhall.workers.model import Pin, Worker


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


# Large, made by tools, and never what a worker works on.
LEFT_OUT = frozenset({".git", ".hg", ".svn", "node_modules", ".venv", "venv", "__pycache__", ".tox", ".mypy_cache"})
MOST_FILES = 10_000
MOST_BYTES = 200_000_000


class _Copying:
    """What holds for the whole of a copy: where it starts, what stays behind, and how much it may be."""

    def __init__(self, root: Path, without: Path | None) -> None:
        self.top = Path(os.path.realpath(root))
        self._without = os.path.realpath(without) if without else None
        self._root = root
        self._files = 0
        self._bytes = 0

    def wanted(self, folder: os.DirEntry[str]) -> bool:
        return folder.name not in LEFT_OUT and os.path.realpath(folder.path) != self._without

    def count(self, size: int) -> None:
        self._files += 1
        self._bytes += size
        if self._files > MOST_FILES or self._bytes > MOST_BYTES:
            raise Conflict(
                f"the project {self._root} is too large to be copied for a test",
                hint=f"A test works on a copy of at most {MOST_FILES:,} files and {MOST_BYTES // 1_000_000:,} MB. "
                "Put the worker and what it needs into a folder of their own, with a guildhall.yaml in it.",
            )


def copy_project(root: Path, target: Path, *, without: Path | None = None) -> None:
    """Copies the project, without what version control and package managers keep. Links that lead out stay behind.

    So does what this user may not read, and a folder that runs are not to see.
    """
    try:
        _copy(root, target, _Copying(root, without))
    except OSError as error:
        raise Conflict(f"the project cannot be copied: {error.strerror or error}", where=str(error.filename)) from None


def copy_home(home: Home, target: Home) -> None:
    """Copies what the person has set up: settings, workers, toolboxes, packages. Neither the record nor the memory."""
    target.path.mkdir(mode=0o700)
    if home.settings.is_file():
        shutil.copyfile(home.settings, target.settings)
    theirs = (home.workers, home.toolboxes, home.packages)
    for folder, copied in zip(theirs, (target.workers, target.toolboxes, target.packages), strict=True):
        if folder.is_dir():
            copy_project(folder, copied, without=home.packages / ASIDE)


def empty_folder(folder: Path, project: Path) -> None:
    """Takes away a folder of the copy, with all that is in it."""
    inside = folder.is_relative_to(project) and folder != project
    if inside and not any(one.is_symlink() for one in (folder, *folder.parents) if one.is_relative_to(project)):
        shutil.rmtree(folder, ignore_errors=True)


def put_files(project: Path, files: Mapping[str, str | None]) -> None:
    """Puts files as a test wants them at its beginning; None takes one away. Links are not followed."""
    for name, text in files.items():
        path = project / name
        if any(parent.is_symlink() for parent in path.parents if parent.is_relative_to(project)):
            raise Conflict(f"files.{name}: the path leads through a link")
        try:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            path.unlink(missing_ok=True)
            if text is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8", newline="")
        except OSError as error:
            raise Conflict(f"files.{name}: {error.strerror or error}") from None


def _copy(source: Path, target: Path, copying: _Copying) -> None:
    with os.scandir(source) as entries:
        target.mkdir(mode=0o700)
        for entry in entries:
            with suppress(PermissionError):
                _copy_entry(entry, target / entry.name, copying)


def _copy_entry(entry: os.DirEntry[str], target: Path, copying: _Copying) -> None:
    if entry.is_symlink():
        _copy_link(Path(entry.path), target, copying.top)
    elif entry.is_dir():
        if copying.wanted(entry):
            _copy(Path(entry.path), target, copying)
    elif entry.is_file():
        status = entry.stat()
        copying.count(status.st_size)
        shutil.copyfile(entry.path, target)
        target.chmod(stat.S_IMODE(status.st_mode) | stat.S_IRUSR | stat.S_IWUSR)


def _copy_link(link: Path, target: Path, top: Path) -> None:
    """A link inside the project leads to the same place inside the copy."""
    leads_to = os.readlink(link)  # noqa: PTH115 - the text of it, as it stands
    if not os.path.isabs(leads_to) and Path(os.path.realpath(link)).is_relative_to(top):  # noqa: PTH117
        target.symlink_to(leads_to)
