"""Member service: finds the members of a hall, starts them on first use, and connects them to workers.

Workers use the tools of a member as a toolbox, and its jobs through dispatch tools. If the files of a member have
changed and the user trusts them, the next use restarts the member.
Does not run the process (`members.process`) and does not define the dispatch tools (`members.dispatch_tools`).

Invariant: a member of a project does not start before the user trusts its files. Members in the home need no trust.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from guildhall.core.errors import GuildError, ToolUnavailable
from guildhall.core.ids import fingerprint
from guildhall.members.dispatch_tools import dispatch_guide, dispatch_server, dispatch_tools
from guildhall.members.jobs import JobWatcher, MemberJobs, not_dispatchable_error
from guildhall.members.manifest import describe_command
from guildhall.members.model import BUSY_FILE, ActiveJob, Member, MemberDetails, MemberStatus
from guildhall.members.process import MemberProcess, Timings, log_path
from guildhall.members.registry import MemberRegistry, member_code, trusted_code
from guildhall.runs.assembly.callees import NO_MEMBERS, MemberTools
from guildhall.runs.assembly.tools_and_folders import MEMBER_CAPABILITIES
from guildhall.tools.mcp.client import Server
from guildhall.tools.mcp.model import ServerSpec
from guildhall.workers.code_trust import Trust, toolbox_files
from guildhall.workers.definition import EVERY_WORKER

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.clock import Clock
    from guildhall.core.paths import Home
    from guildhall.core.request_frame import Frame
    from guildhall.members.client import MemberClient
    from guildhall.workers.model import Worker


_RESTART_AFTER_S = 10.0  # minimum time before a broken member is restarted


class Members:
    """The members of one hall."""

    def __init__(self, *, home: Home, clock: Clock, trust: Callable[[], Trust], timings: Timings | None = None) -> None:
        """`trust` returns the current trust of the user."""
        self._home = home
        self._clock = clock
        self._trust = trust
        self._timings = timings or Timings()
        self._processes: dict[Path, MemberProcess] = {}  # by folder
        self._start_lock = asyncio.Lock()
        self._watcher = JobWatcher(home.path / BUSY_FILE, clock)
        self._is_closed = False

    def registry(self, frame: Frame) -> MemberRegistry:
        return MemberRegistry(frame.root, self._home)

    def find(self, name: str, frame: Frame) -> Member:
        return self.registry(frame).find(name)

    def details(self, member: Member) -> MemberDetails:
        trusted = self._is_trusted(member)
        process = self._processes.get(member.folder)
        log = log_path(member, self._home)
        if process is None:
            state = "trusted" if trusted else "declared"
            return MemberDetails(member=member, state=state, trusted=trusted, log=log if log.exists() else None)
        pid, port, note = process.pid, process.port, process.note
        return MemberDetails(
            member=member, state=process.state, trusted=trusted, pid=pid, port=port, note=note, log=log
        )

    def _is_trusted(self, member: Member) -> bool:
        if member.manifest is None:
            return False
        try:
            trusted_code(self._trust(), member)
        except GuildError:
            return False
        return True

    async def client(self, member: Member, frame: Frame) -> MemberClient:
        """Start a member if needed, and return its client. Raise NotTrusted if the user does not trust it."""
        code = await asyncio.to_thread(trusted_code, self._trust(), member)
        assert member.manifest is not None
        code_fingerprint = fingerprint([member.manifest.model_dump(mode="json"), [file.digest for file in code.files]])
        async with self._start_lock:
            process = await self._process(member, frame, code_fingerprint)
        return await process.client()

    async def _process(self, member: Member, frame: Frame, code_fingerprint: str) -> MemberProcess:
        if self._is_closed:
            message = f"cannot start the member {member.name}: the hall is stopping"
            raise ToolUnavailable(message, hint="Repeat the command to start a new hall.")
        if (process := self._processes.get(member.folder)) is not None:
            may_restart = process.is_over and self._clock.monotonic() - process.created_at >= _RESTART_AFTER_S
            needs_restart = not self._watcher.count_jobs(member.folder) and process.has_other_variables(frame)
            if process.code_fingerprint == code_fingerprint and not may_restart and not needs_restart:
                return process
            await process.stop()
        process = MemberProcess(member, frame, self._home, self._clock, self._timings, code_fingerprint, process)
        self._processes[member.folder] = process
        if member.accepts_jobs:  # jobs of an earlier process may still be running
            self._watcher.watch(member, self._shortest_name(member, frame), frame.root, process.client)
        return process

    async def stop(self, member: Member) -> None:
        """Stop a member. Its running jobs continue when it is started again."""
        async with self._start_lock:
            if (process := self._processes.pop(member.folder, None)) is not None:
                await self._watcher.stop_polling(member.folder)
                await process.stop()

    def jobs(self, member: Member, frame: Frame) -> MemberJobs:
        """Return the jobs of a member. Raise Refused if it does not accept jobs."""
        reach, name = partial(self.client, member, frame), self._shortest_name(member, frame)
        return MemberJobs(
            member,
            reach,
            on_dispatch=partial(self._watcher.watch, member, name, frame.root, reach),
            on_status=partial(self._watcher.update, member, name, frame.root),
        )

    def _shortest_name(self, member: Member, frame: Frame) -> str:
        """Return the shortest name that finds a member."""
        names = [other.name for other in self.registry(frame).members()]
        return member.name if names.count(member.name) == 1 else member.qualified_name

    @property
    def is_busy(self) -> bool:
        return self._watcher.is_busy

    def active_jobs(self) -> list[ActiveJob]:
        """Return the running jobs of all members, and the ended jobs with open questions, as of the last poll."""
        return self._watcher.active_jobs()

    def statuses(self) -> list[MemberStatus]:
        """Return the state and the number of running jobs of each started member."""
        return [
            {"member": process.member.name, "state": process.state, "jobs": self._watcher.count_jobs(folder)}
            for folder, process in self._processes.items()
        ]

    def restart_busy(self, frame_at: Callable[[Path], Frame]) -> list[str]:
        """Start the members that were busy when an earlier hall ended. Return their names."""
        started: list[str] = []
        for folder, root in self._watcher.busy_members():
            frame = frame_at(root)
            for member in self.registry(frame).members():
                if member.folder == folder and member.accepts_jobs and self._is_trusted(member):
                    reach = partial(self.client, member, frame)
                    self._watcher.watch(member, self._shortest_name(member, frame), root, reach)
                    started.append(member.name)
        return started

    async def close(self) -> None:
        self._is_closed = True
        await self._watcher.close()
        await asyncio.gather(*(process.stop() for process in self._processes.values()))
        self._processes.clear()

    @asynccontextmanager
    async def connect(self, name: str, frame: Frame) -> AsyncGenerator[Server]:
        """Connect to the MCP server of a member for the duration of the block."""
        server = await Server.connect(await self.spec(self.find(name, frame), frame))
        try:
            yield server
        finally:
            await server.close()

    async def spec(self, member: Member, frame: Frame, worker_file: str | None = None) -> ServerSpec:
        """Start a member, and return the specification of its MCP server."""
        endpoint = (await self.client(member, frame)).endpoint
        return ServerSpec(
            name=member.name,
            url=endpoint.url,
            token=endpoint.secret,
            capabilities=MEMBER_CAPABILITIES,
            worker_file=worker_file,
            field="toolboxes",
        )

    async def specs(self, worker: Worker, frame: Frame) -> list[ServerSpec]:
        """Start the members that a worker names as toolboxes, and return the specifications of their MCP servers."""
        frame = worker.project_frame(frame)
        return [await self.spec(member, frame, worker.place) for member in self._toolboxes(worker, frame)]

    def member_tools(self, worker: Worker, frame: Frame) -> MemberTools:
        """Return the tools, code and problems of a worker's members. Does not start a member."""
        frame = worker.project_frame(frame)
        toolboxes = list(self._toolboxes(worker, frame))
        if not worker.definition.members and not toolboxes:
            return NO_MEMBERS
        targets, problems = self._dispatch_targets(worker, frame)
        problems += [
            ToolUnavailable(
                f"toolboxes: {name!r} is ambiguous: a member and an MCP server",
                where=worker.place,
                hint="Rename the server in mcp_servers, or remove one of the two.",
            )
            for name in (member.name for member in toolboxes)
            if name in worker.definition.mcp_servers
        ]
        members = {member.folder: member for member in (*toolboxes, *targets)}.values()
        code = [member_code(member) for member in members] if not problems else []
        return MemberTools(
            toolboxes=tuple(member.name for member in toolboxes),
            dispatch={
                dispatch_server(member): dispatch_tools(member, partial(self.jobs, member, frame)) for member in targets
            },
            prompt=dispatch_guide(targets),
            lines=tuple(_plan_line(member, toolboxes, targets) for member in members),
            code=tuple(code),
            problems=tuple(problems),
        )

    def _toolboxes(self, worker: Worker, frame: Frame) -> Iterator[Member]:
        """Yield the members that a worker names as toolboxes. A toolbox with a file is not a member."""
        names = [name for name in worker.definition.toolboxes if not toolbox_files(worker, name, self._home)]
        known = {member.name for member in self.registry(frame).members()} if names else set[str]()
        for name in names:
            if name in known:
                with suppress(GuildError):  # reported as an unknown toolbox
                    yield self.find(name, frame)

    def _dispatch_targets(self, worker: Worker, frame: Frame) -> tuple[list[Member], list[GuildError]]:
        """Return the members that a worker can dispatch to, and the errors of invalid names."""
        targets: dict[Path, Member] = {}
        problems: list[GuildError] = []
        for name in worker.definition.members:
            if name == EVERY_WORKER:
                members = self.registry(frame).members()
                targets |= {m.folder: m for m in members if m.accepts_jobs and self._is_trusted(m)}
                continue
            try:
                member = self.find(name, frame)
                if not member.accepts_jobs:
                    raise not_dispatchable_error(member)
                targets[member.folder] = member
            except GuildError as error:
                problems.append(ToolUnavailable(f"members: {error.message}", where=worker.place, hint=error.hint))
        names = [member.name for member in targets.values()]
        if duplicate := next((name for name in names if names.count(name) > 1), None):
            hint = f"Use project/{duplicate} or home/{duplicate}."
            problems.append(ToolUnavailable(f"members: {duplicate!r} is ambiguous", where=worker.place, hint=hint))
        return list(targets.values()), problems


def _plan_line(member: Member, toolboxes: list[Member], targets: list[Member]) -> str:
    assert member.manifest is not None
    roles = ["dispatches jobs to it"] if member in targets else []
    roles += ["uses its tools"] if member in toolboxes else []
    return f"{member.qualified_name}: {', '.join(roles)}; runs {'; '.join(describe_command(member.manifest))}"
