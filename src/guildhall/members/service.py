"""The member service of a hall: finds members, checks trust, starts them on first use, connects them to workers.

The tools of a member serve as a toolbox. The jobs of a member serve as dispatch tools. The next use of a member
restarts it if its files have changed and the user trusts the new files.
Does not run the process (`process.py`) and does not define the dispatch tools (`tools.py`).

Invariant: a member of a project does not start before the user trusts its files. Members in the home need no trust.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from guildhall.core.errors import GuildError, ToolUnavailable
from guildhall.core.ids import fingerprint
from guildhall.members.folders import MemberRegistry, member_code, trusted_code
from guildhall.members.jobs import BUSY_FILE, JobWatcher, MemberJobs, not_dispatchable
from guildhall.members.manifest import describe_command
from guildhall.members.model import ActiveJob, Member, MemberDetails, MemberStatus
from guildhall.members.process import MemberProcess, Timings, log_path
from guildhall.members.tools import dispatch_guide, dispatch_server, dispatch_tools
from guildhall.runs.assembly.callees import NO_MEMBERS, Outsiders
from guildhall.runs.assembly.tool_set import MEMBER_CAPABILITIES
from guildhall.tools.mcp.client import Server
from guildhall.tools.mcp.model import ServerSpec
from guildhall.workers.code import Trust, toolbox_files
from guildhall.workers.definition import EVERY_WORKER

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator
    from pathlib import Path

    from guildhall.core.clock import Clock
    from guildhall.core.frame import Frame
    from guildhall.core.paths import Home
    from guildhall.members.client import MemberClient
    from guildhall.workers.model import Worker


_RESTART_AFTER_S = 10.0  # a broken member is not restarted before


class Members:
    """The members of one hall."""

    def __init__(self, *, home: Home, clock: Clock, trust: Callable[[], Trust], timings: Timings | None = None) -> None:
        """`trust` returns the files that the user trusts now."""
        self._home = home
        self._clock = clock
        self._trust = trust
        self._timings = timings or Timings()
        self._processes: dict[Path, MemberProcess] = {}  # by folder
        self._starting = asyncio.Lock()
        self._work = JobWatcher(home.path / BUSY_FILE, clock)
        self._closed = False

    def registry(self, frame: Frame) -> MemberRegistry:
        return MemberRegistry(frame.root, self._home)

    def find(self, name: str, frame: Frame) -> Member:
        return self.registry(frame).find(name)

    def details(self, member: Member) -> MemberDetails:
        """Return the state of a member."""
        trusted = self._trusted(member)
        process = self._processes.get(member.folder)
        log = log_path(member, self._home)
        if process is None:
            state = "trusted" if trusted else "declared"
            return MemberDetails(member=member, state=state, trusted=trusted, log=log if log.exists() else None)
        return MemberDetails(
            member=member,
            state=process.state,
            trusted=trusted,
            pid=process.pid,
            port=process.port,
            note=process.note,
            log=log,
        )

    def _trusted(self, member: Member) -> bool:
        if member.manifest is None:
            return False
        try:
            trusted_code(self._trust(), member)
        except GuildError:
            return False
        return True

    async def client(self, member: Member, frame: Frame) -> MemberClient:
        """Return the client of a member, which is started if needed. Raise NotTrusted if it may not run."""
        code = await asyncio.to_thread(trusted_code, self._trust(), member)
        assert member.manifest is not None
        stamp = fingerprint([member.manifest.model_dump(mode="json"), [file.digest for file in code.files]])
        async with self._starting:
            process = await self._process(member, frame, stamp)
        return await process.client()

    async def _process(self, member: Member, frame: Frame, stamp: str) -> MemberProcess:
        if self._closed:
            raise ToolUnavailable(f"the member {member.name} is not started: the hall is leaving")
        if (process := self._processes.get(member.folder)) is not None:
            rested = process.is_over and self._clock.monotonic() - process.created_at >= _RESTART_AFTER_S
            if process.stamp == stamp and not rested:
                return process
            await process.stop()
        process = MemberProcess(member, frame, self._home, self._clock, self._timings, stamp)
        self._processes[member.folder] = process
        if member.accepts_jobs:  # jobs of an earlier process of it may go on
            self._work.watch(member, self._called(member, frame), frame.root, process.client)
        return process

    def jobs(self, member: Member, frame: Frame) -> MemberJobs:
        """Return the jobs of a member. Raise Refused if it takes no work."""
        reach = partial(self.client, member, frame)
        called = self._called(member, frame)
        return MemberJobs(member, reach, partial(self._work.watch, member, called, frame.root, reach))

    def _called(self, member: Member, frame: Frame) -> str:
        """Return the shortest name that finds a member."""
        alike = [one for one in self.registry(frame).members() if one.name == member.name]
        return member.name if len(alike) == 1 else member.qualified_name

    @property
    def is_busy(self) -> bool:
        """Return True if jobs of members are running."""
        return self._work.is_busy

    def active_jobs(self) -> list[ActiveJob]:
        """Return the running jobs of members, as they were at the last poll."""
        return self._work.active_jobs()

    def statuses(self) -> list[MemberStatus]:
        """Return the state and the number of running jobs of each started member."""
        return [
            {"member": process.member.name, "state": process.state, "jobs": self._work.count(folder)}
            for folder, process in self._processes.items()
        ]

    def restart_busy(self, frame_at: Callable[[Path], Frame]) -> list[str]:
        """Start the members that were busy when an earlier hall ended. Return their names."""
        started: list[str] = []
        for folder, root in self._work.busy_members():
            frame = frame_at(root)
            for member in self.registry(frame).members():
                if member.folder == folder and member.accepts_jobs and self._trusted(member):
                    reach = partial(self.client, member, frame)
                    self._work.watch(member, self._called(member, frame), root, reach)
                    started.append(member.name)
        return started

    async def close(self) -> None:
        """Stop all members."""
        self._closed = True
        await self._work.close()
        await asyncio.gather(*(process.stop() for process in self._processes.values()))
        self._processes.clear()

    @asynccontextmanager
    async def connect(self, name: str, frame: Frame) -> AsyncGenerator[Server]:
        """Connect to the tools of a member for the duration of the block."""
        server = await Server.connect(await self.spec(self.find(name, frame), frame))
        try:
            yield server
        finally:
            await server.close()

    async def spec(self, member: Member, frame: Frame, where: str | None = None) -> ServerSpec:
        """Start a member, and return its tools as a server."""
        endpoint = (await self.client(member, frame)).endpoint
        return ServerSpec(
            name=member.name,
            url=endpoint.url,
            token=endpoint.secret,
            capabilities=MEMBER_CAPABILITIES,
            where=where,
            field="toolboxes",
        )

    async def specs(self, worker: Worker, frame: Frame) -> list[ServerSpec]:
        """Start the members that a worker names as toolboxes, and return them as servers."""
        near = worker.project_frame(frame)
        return [await self.spec(member, near, worker.place) for member in self._toolboxes(worker, near)]

    def worker_tools(self, worker: Worker, frame: Frame) -> Outsiders:
        """Return the tools, code and problems that a worker has through members. Does not start any."""
        near = worker.project_frame(frame)
        of_tools = list(self._toolboxes(worker, near))
        if not worker.definition.members and not of_tools:
            return NO_MEMBERS
        found, problems = self._dispatched(worker, near)
        problems += [
            ToolUnavailable(f"toolboxes: {name} is a member, and there is a server of that name", where=worker.place)
            for name in (member.name for member in of_tools)
            if name in worker.definition.mcp_servers
        ]
        named = {member.folder: member for member in (*of_tools, *found)}
        code = [member_code(member) for member in named.values()] if not problems else []
        return Outsiders(
            toolboxes=tuple(member.name for member in of_tools),
            dispatch={dispatch_server(one): dispatch_tools(one, partial(self.jobs, one, near)) for one in found},
            prompt=dispatch_guide(found),
            lines=tuple(_line(member, of_tools, found) for member in named.values()),
            code=tuple(code),
            problems=tuple(problems),
        )

    def _toolboxes(self, worker: Worker, near: Frame) -> Iterator[Member]:
        """Yield the members that a worker names as toolboxes. A toolbox that has a file is not a member."""
        lacking = [name for name in worker.definition.toolboxes if not toolbox_files(worker, name, near, self._home)]
        everyone = self.registry(near).members() if lacking else []
        for name in lacking:
            if any(member.name == name for member in everyone):
                try:
                    yield self.find(name, near)
                except GuildError:
                    continue  # reported as a missing toolbox

    def _dispatched(self, worker: Worker, near: Frame) -> tuple[list[Member], list[GuildError]]:
        """Return the members that a worker may dispatch to, and the errors of invalid names."""
        found: dict[Path, Member] = {}
        problems: list[GuildError] = []
        for name in worker.definition.members:
            if name == EVERY_WORKER:
                everyone = [one for one in self.registry(near).members() if one.accepts_jobs and self._trusted(one)]
                found |= {one.folder: one for one in everyone}
                continue
            try:
                member = self.find(name, near)
                if not member.accepts_jobs:
                    raise not_dispatchable(member)
                found[member.folder] = member
            except GuildError as error:
                problems.append(ToolUnavailable(f"members: {error.message}", where=worker.place, hint=error.hint))
        names = [member.name for member in found.values()]
        if twice := next((name for name in names if names.count(name) > 1), None):
            message = f"members: there are two members named {twice!r}"
            problems.append(ToolUnavailable(message, where=worker.place, hint="Name one of them, with its place."))
        return list(found.values()), problems


def _line(member: Member, of_tools: list[Member], dispatched: list[Member]) -> str:
    """Return the line of a plan about a member."""
    assert member.manifest is not None
    roles = ["may dispatch to it"] if member in dispatched else []
    roles += ["uses its tools"] if member in of_tools else []
    return f"{member.qualified_name}: {', '.join(roles)}; runs {'; '.join(describe_command(member.manifest))}"
