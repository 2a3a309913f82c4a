"""Worker services of a hall: find workers, check trust, and resolve the code, members, models and tools of workers.

Trust is checked for a worker and for all workers that it may call by name. Untrusted workers that it may call only by
`*` are left out.
Does not read worker files: `guildhall.workers` does. Does not start runs: `run_services` does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from guildhall.core.clock import stamp
from guildhall.core.errors import GuildError, NotTrusted
from guildhall.models import catalog
from guildhall.models.credentials import find_login, merge_environ
from guildhall.projects.manager.tools import is_manager
from guildhall.runs.assembly.callees import find_callees
from guildhall.runs.assembly.preflight import Preflight, raise_problems
from guildhall.workers import records
from guildhall.workers.code_trust import trust_command
from guildhall.workers.definition import ToolRule
from guildhall.workers.lifecycle import Use, check_usable, requested_lock
from guildhall.workers.registry import Registry

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.request_frame import Frame
    from guildhall.hall.composition.environment import Environment
    from guildhall.hall.composition.runtime_registry import RuntimeRegistry
    from guildhall.members.service import Members
    from guildhall.memory.service import Memory
    from guildhall.models.model import Source
    from guildhall.runs.assembly.assembler import Assembler
    from guildhall.runs.execution.memory_compaction import MemoryCompactor
    from guildhall.runs.model import Run
    from guildhall.runs.plan.planner import Planner
    from guildhall.store.engine import Store
    from guildhall.tools.call_router import ToolEnvironment
    from guildhall.tools.mcp.client import Servers
    from guildhall.tools.model import Tool
    from guildhall.workers.model import Pin, Worker, WorkerListing

    # The tools that a worker has in a project without declaring them: worker, frame, run, context.
    ProjectTools = Callable[[Worker, Frame, str, str], tuple[Tool, ...]]


@dataclass(kw_only=True, eq=False, repr=False)
class WorkerServices:
    """The workers of a home, with their code, members, models and tools."""

    environment: Environment
    store: Store
    runtimes: RuntimeRegistry
    get_members: Callable[[], Members]
    get_memory: Callable[[], Memory]
    get_compactor: Callable[[], MemoryCompactor]
    project_tools: ProjectTools
    recorded_source: Callable[[str], Source]  # returns the model responses of a recorded run

    def registry(self, frame: Frame) -> Registry:
        """Return the workers that a request can see."""
        return Registry(frame.root, self.environment.home, locks=self.store.read(records.all_locks))

    def list_workers(self, frame: Frame) -> list[WorkerListing]:
        """Return all workers that a request can see, including invalid ones."""
        return self.registry(frame).listings()

    def find(self, name: str, frame: Frame) -> Worker:
        """Return a worker by name or file.

        A worker that asks to be locked is pinned when it is first seen. The manager gets the rules of the settings.
        """
        worker = self.registry(frame).find(name, frame.cwd)
        pin = requested_lock(worker, stamp(self.environment.clock.now()))
        if pin is not None and not self.environment.readonly:
            lock = self.store.submit(lambda connection: records.add_requested_lock(connection, pin)).result()
            worker = replace(worker, lock=lock)
        self.environment.policy.check_worker(worker, frame)
        asks_before = self.environment.settings(frame).manager.asks_before if is_manager(worker) else ()
        if not asks_before:
            return worker
        rules = {**worker.definition.tool_rules, **{name: ToolRule(approval_required=True) for name in asks_before}}
        files = dict.fromkeys(asks_before, "manager.asks_before in the settings")
        return replace(worker, definition=worker.definition.model_copy(update={"tool_rules": rules}), rule_files=files)

    def find_for_work(self, name: str, frame: Frame, use: Use = "name") -> Worker:
        """Return a worker that accepts work. Raise NotTrusted if it or a worker that it may call is not trusted."""
        worker = self.find(name, frame)
        check_usable(worker, use)
        self.check_trust(worker, frame)
        return worker

    def active_workers(self, frame: Frame) -> list[Worker]:
        """Return the workers that `*` stands for: every active worker whose file is valid."""
        registry = self.registry(frame)
        workers: list[Worker] = []
        for listing in registry.listings():
            with suppress(GuildError):
                if listing.error is None and listing.status == "active":
                    workers.append(registry.find(str(listing.path), frame.cwd))
        return workers

    def pins(self) -> Mapping[Path, Pin]:
        """Return the files of projects that the user trusts."""
        pins = self.environment.policy.pins
        return self.store.read(records.all_pins) if pins is None else pins

    def pins_below(self, folder: Path) -> list[Pin]:
        """Return the trusted files below a folder, including files that no longer exist."""
        top = folder.resolve()
        return [pin for path, pin in self.pins().items() if path.is_relative_to(top)]

    @cached_property
    def preflight(self) -> Preflight:
        member = self.environment.member
        return Preflight(
            home=self.environment.home,
            environ=self.environment.environ,
            load_settings=self.environment.settings,
            load_pins=self.pins,
            list_locked_files=lambda: self.store.read(records.all_locks),
            find_member_tools=lambda worker, frame: self.get_members().member_tools(worker, frame),
            member_folder=member.root if member is not None else None,
            check_program=self.runtimes.check_program,
            source_of=self.model_source,
            is_priced=self.has_price,
        )

    @cached_property
    def planner(self) -> Planner:
        from guildhall.runs.plan.planner import Planner

        return Planner(assembler=self.assembler)

    @cached_property
    def assembler(self) -> Assembler:
        from guildhall.runs.assembly.assembler import Assembler
        from guildhall.runs.assembly.memory import RunMemory

        return Assembler(
            find_worker=self.find,
            list_workers=self.list_workers,
            list_active_workers=self.active_workers,
            describe_code=self.runtimes.toolbox_descriptions.describe,
            memory=RunMemory(
                memory=self.get_memory(),
                request_compaction=lambda request: self.get_compactor().start(request),
                had_entries=self.environment.policy.had_memory,
            ),
            replace_tool=self.environment.policy.replace_tool,
            preflight=self.preflight,
            connect_servers=self._connect_servers,
            hall_tools=self.project_tools,
            project_name=self._project_name,
        )

    def _project_name(self, frame: Frame) -> str | None:
        project = self.environment.projects.find_at(frame.root)
        return project.name if project is not None else None

    async def _connect_servers(self, worker: Worker, frame: Frame, environment: ToolEnvironment) -> Servers:
        """Start or connect to the tool servers and the members that a worker names."""
        from guildhall.runs.assembly.tool_sources import connect_servers

        if (check_servers := self.environment.policy.check_servers) is not None:
            check_servers(worker, self.preflight.find_member_tools(worker, frame))
        members = await self.get_members().specs(worker, frame)
        return await connect_servers(worker, frame, environment, self.preflight, members)

    def model_source(self, model: str, frame: Frame, login: bool = False) -> Source:
        """Return the source of model responses. `login`: a Claude login may replace an API key."""
        if (source_of := self.environment.policy.source_of) is not None:
            return source_of(model, frame, login)
        environ = merge_environ(self.environment.environ, frame.keys)
        return catalog.create_source(
            model,
            cwd=frame.cwd,
            environ=environ,
            recording=self.recorded_source,
            login=find_login(environ) if login else None,
            timeouts=self.preflight.load_settings(frame).model_timeouts,
        )

    def has_price(self, model: str, frame: Frame) -> bool | None:
        """Return True if the price of a model is known, or None if that is uncertain."""
        return catalog.has_price(model, cwd=frame.cwd, environ=merge_environ(self.environment.environ, frame.keys))

    def check_trust(self, worker: Worker, frame: Frame, python_toolboxes: Collection[str] = ()) -> None:
        """Raise NotTrusted if a worker that this worker may call by name uses code that is not trusted.

        The error lists the untrusted code of both. `python_toolboxes`: toolboxes of the caller, which need no trust.
        """
        callees = self._callees(worker, frame)
        errors = [error for callee in callees for error in self._trust_errors(callee, frame, python_toolboxes)]
        if errors:
            errors = [*self._trust_errors(worker, frame, python_toolboxes), *errors]
            raise_problems([_as_caller_error(worker, error, frame) for error in errors], worker.place)

    def check_trust_again(self, run: Run, frame: Frame, python_toolboxes: Collection[str] = ()) -> None:
        """Check trust before a run is resumed, using the worker file as it is now. Skip runs that cannot be resumed."""
        if run.parent is not None or run.status in ("completed", "cancelled"):
            return
        frame = replace(frame, cwd=run.frame.cwd, root=run.frame.root)
        try:
            worker = self.find(run.request.worker, frame)
        except GuildError:
            return
        self.check_trust(worker, frame, python_toolboxes)

    def untrusted_callees(self, worker: Worker, frame: Frame) -> list[str]:
        """Return the names of the untrusted workers that this worker may call only by `*`."""
        named = {callee.identity for callee in self._callees(worker, frame)}
        callees = self._callees(worker, frame, active=self.active_workers(worker.project_frame(frame)))
        unnamed = (callee for callee in callees if callee.identity not in named)
        return [callee.name for callee in unnamed if self._trust_errors(callee, frame, ())]

    def _callees(self, worker: Worker, frame: Frame, active: Sequence[Worker] = ()) -> list[Worker]:
        """Return the workers that a worker can call, directly or indirectly. `active`: the workers that `*` selects."""
        project_frame = worker.project_frame(frame)
        callees = find_callees(worker, lambda name: self.find(name, project_frame), lambda: active)
        return [callee.worker for callee in callees if callee.worker and callee.problem is None]

    def _trust_errors(self, worker: Worker, frame: Frame, python_toolboxes: Collection[str]) -> list[NotTrusted]:
        trust, errors = self.preflight.load_trust(), list[NotTrusted]()
        for code in self.preflight.find_code(worker, frame, python_toolboxes)[0]:
            try:
                trust.check(code, worker, frame)
            except NotTrusted as error:
                errors.append(error)
        return errors


def _as_caller_error(caller: Worker, error: NotTrusted, frame: Frame) -> NotTrusted:
    """Return the error of a worker as an error of its caller, with the command that shows all code of the caller."""
    callee = "" if error.where == caller.place else f"{error.where}, which it may call: "
    hint = f"Review and trust it: {trust_command(caller, frame)}"
    return NotTrusted(f"{callee}{error.message}", where=caller.place, hint=hint)
