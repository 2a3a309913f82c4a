"""The member service of a hall: finds members, checks trust, starts them on first use, connects them to workers.

The tools of a member serve as a toolbox. The jobs of a member serve as dispatch tools. The next use of a member
restarts it if its files have changed and the user trusts the new files.
Does not run the process (`process.py`) and does not define the dispatch tools (`tools.py`).

Invariant: a member of a project does not start before the user trusts its files. Members in the home need no trust.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from guildhall.core.errors import GuildError, NotTrusted, ToolUnavailable
from guildhall.core.ids import fingerprint
from guildhall.members.activity import FILE, Work
from guildhall.members.jobs import MemberJobs, takes_no_work
from guildhall.members.manifest import Roster, wanted
from guildhall.members.model import FOLDER, AtWork, Member, MemberShown, MemberStatus
from guildhall.members.process import MemberProcess, Pace, log_of
from guildhall.members.tools import bridge, guidance, server_of
from guildhall.runs.assembly.callees import NOBODY, Outsiders
from guildhall.runs.assembly.tool_set import OF_MEMBERS
from guildhall.tools.mcp.client import Server
from guildhall.tools.mcp.model import ServerSpec
from guildhall.workers.definition import EVERY_WORKER
from guildhall.workers.references import Code, CodeFile, code_file, toolbox_files

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator

    from guildhall.core.clock import Clock
    from guildhall.core.frame import Frame
    from guildhall.core.paths import Home
    from guildhall.members.client import MemberClient
    from guildhall.workers.model import Worker
    from guildhall.workers.trust import Trust


# What a member writes: its state, which is data. Nothing of it is executed.
WRITTEN = frozenset({"jobs", "memory", "logs"})
# The home of a member's own hall is state too, but for what decides there.
_HOME = ".guild"
_DECIDING = frozenset({"config.yaml", "workers", "prompts", "toolboxes", "packages", FOLDER})
_MOST_FILES = 500
_MOST_BYTES = 5_000_000


def member_code(member: Member) -> Code:
    """The files of a member, read and not run. Those of a member in the home are the person's own."""
    root = member.folder.parent.parent
    if member.scope == "home":
        return Code(kind="member", name=member.name, root=root, files=(), own=True)
    files: list[CodeFile] = []
    size = 0
    for path in _files(member):
        files.append(code_file(path, root))
        size += len(files[-1].content)
        if len(files) > _MOST_FILES or size > _MOST_BYTES:
            raise ToolUnavailable(
                f"the member {member.name} has more than {_MOST_FILES} files, or {_MOST_BYTES:,} bytes",
                where=str(member.folder),
                hint="Nobody can look at so many. Put what it needs elsewhere, or the member into your home.",
            )
    return Code(kind="member", name=member.name, root=root, files=tuple(files), folder=member.folder)


def demand(trust: Trust, member: Member) -> Code:
    """The code of a member that may run; NotTrusted says why it may not."""
    code = member_code(member)
    if not trust.holds(code):
        message = f"the member {code.name} is {trust.why_not(code)}"
        raise NotTrusted(message, where=str(member.path), hint="Look at it, then: guild trust")
    return code


def _files(member: Member) -> Iterator[Path]:
    def unreadable(error: OSError) -> None:
        raise ToolUnavailable(f"the folder cannot be read: {error.strerror or error}", where=error.filename)

    for place, folders, files in os.walk(member.folder, onerror=unreadable):
        here = Path(place)
        kept = [name for name in sorted((*folders, *files)) if name != "__pycache__" and _counts(here, name, member)]
        if link := next((here / name for name in kept if name in folders and (here / name).is_symlink()), None):
            raise ToolUnavailable("this is a link to a folder, in which anything could be", where=str(link))
        folders[:] = [name for name in kept if name in folders]
        yield from (here / name for name in kept if name in files)


def _counts(here: Path, name: str, member: Member) -> bool:
    if here == member.folder:
        return name not in WRITTEN
    return name in _DECIDING if here == member.folder / _HOME else True


_AGAIN_AFTER = 10.0  # seconds that a broken one is left alone


@dataclass(frozen=True)
class _Kept:
    process: MemberProcess
    since: float


class Members:
    """Looks after the members of one hall."""

    def __init__(self, *, home: Home, clock: Clock, trust: Callable[[], Trust], pace: Pace | None = None) -> None:
        """`trust`: what the person trusts now."""
        self._home = home
        self._clock = clock
        self._trust = trust
        self._pace = pace or Pace()
        self._kept: dict[Path, _Kept] = {}
        self._starting = asyncio.Lock()
        self._work = Work(home.path / FILE, clock)
        self._closed = False

    # finding

    def roster(self, frame: Frame) -> Roster:
        return Roster(frame.root, self._home)

    def find(self, name: str, frame: Frame) -> Member:
        return self.roster(frame).find(name)

    def shown(self, member: Member) -> MemberShown:
        """How a member stands."""
        trusted = self._trusted(member)
        kept = self._kept.get(member.folder)
        log = log_of(member, self._home)
        if kept is None:
            state = "trusted" if trusted else "declared"
            return MemberShown(member=member, state=state, trusted=trusted, log=log if log.exists() else None)
        process = kept.process
        return MemberShown(
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
            demand(self._trust(), member)
        except GuildError:
            return False
        return True

    # running

    async def client(self, member: Member, frame: Frame) -> MemberClient:
        """A way to a member that is running and ready. It is started if it may run; NotTrusted: it may not."""
        code = await asyncio.to_thread(demand, self._trust(), member)
        assert member.manifest is not None
        stamp = fingerprint([member.manifest.model_dump(mode="json"), [file.digest for file in code.files]])
        async with self._starting:
            process = await self._process(member, frame, stamp)
        return await process.client()

    async def _process(self, member: Member, frame: Frame, stamp: str) -> MemberProcess:
        if self._closed:
            raise ToolUnavailable(f"the member {member.name} is not started: the hall is leaving")
        kept = self._kept.get(member.folder)
        if kept is not None:
            changed = kept.process.stamp != stamp
            rested = kept.process.over and self._clock.monotonic() - kept.since >= _AGAIN_AFTER
            if not changed and not rested:
                return kept.process
            await kept.process.stop()
        process = MemberProcess(member, frame, self._home, self._clock, self._pace, stamp)
        self._kept[member.folder] = _Kept(process, self._clock.monotonic())
        if member.takes_work:  # jobs of an earlier process of it may go on
            self._work.began(member, self._called(member, frame), frame.root, process.client)
        return process

    def jobs(self, member: Member, frame: Frame) -> MemberJobs:
        """Return the jobs of a member. Raise Refused if it takes no work."""
        reach = partial(self.client, member, frame)
        called = self._called(member, frame)
        return MemberJobs(member, reach, partial(self._work.began, member, called, frame.root, reach))

    def _called(self, member: Member, frame: Frame) -> str:
        """The shortest name that finds a member."""
        alike = [one for one in self.roster(frame).listed() if one.name == member.name]
        return member.name if len(alike) == 1 else member.qualified

    @property
    def busy(self) -> bool:
        """Whether jobs of members go on, as far as is known."""
        return self._work.busy

    def at_work(self) -> list[AtWork]:
        """The jobs of members that go on, as far as is known."""
        return self._work.seen()

    def statuses(self) -> list[MemberStatus]:
        """Return the states of the members that were started and not stopped."""
        return [
            {"member": kept.process.member.name, "state": kept.process.state, "jobs": self._work.count(folder)}
            for folder, kept in self._kept.items()
        ]

    def go_on(self, frame_at: Callable[[Path], Frame]) -> list[str]:
        """Starts the members that were at work when an earlier hall ended; their names."""
        started: list[str] = []
        for folder, root in self._work.left_behind():
            frame = frame_at(root)
            found = [one for one in self.roster(frame).listed() if one.folder == folder and one.takes_work]
            for member in found:
                if self._trusted(member):
                    reach = partial(self.client, member, frame)
                    self._work.began(member, self._called(member, frame), root, reach)
                    started.append(member.name)
        return started

    async def close(self) -> None:
        """Stops all of them."""
        self._closed = True
        await self._work.close()
        await asyncio.gather(*(kept.process.stop() for kept in self._kept.values()))
        self._kept.clear()

    @asynccontextmanager
    async def connected(self, name: str, frame: Frame) -> AsyncGenerator[Server]:
        """The tools of a member, for the length of a block."""
        server = await Server.connect(await self.spec(self.find(name, frame), frame))
        try:
            yield server
        finally:
            await server.close()

    # what workers have of them

    async def spec(self, member: Member, frame: Frame, where: str | None = None) -> ServerSpec:
        """A member's tools as those of a server. It is started."""
        door = (await self.client(member, frame)).door
        return ServerSpec(
            name=member.name,
            url=door.url,
            token=door.secret,
            capabilities=OF_MEMBERS,
            where=where,
            field="toolboxes",
        )

    async def specs(self, worker: Worker, frame: Frame) -> list[ServerSpec]:
        """The servers of the toolboxes that are members' tools. They are started."""
        near = worker.frame(frame)
        return [await self.spec(member, near, worker.place) for member in self._toolboxes(worker, near)]

    def outsiders(self, worker: Worker, frame: Frame) -> Outsiders:
        """What a worker has of members; nothing is started."""
        near = worker.frame(frame)
        of_tools = list(self._toolboxes(worker, near))
        if not worker.definition.members and not of_tools:
            return NOBODY
        found, problems = self._dispatched(worker, near)
        problems += [
            ToolUnavailable(
                f"toolboxes: {one.name} is a member, and there is a server of that name", where=worker.place
            )
            for one in of_tools
            if one.name in worker.definition.mcp_servers
        ]
        named = {member.folder: member for member in (*of_tools, *found)}
        code = [member_code(member) for member in named.values()] if not problems else []
        return Outsiders(
            toolboxes=tuple(member.name for member in of_tools),
            dispatch={server_of(one): bridge(one, partial(self._reach_jobs, one, near)) for one in found},
            prompt=guidance(found),
            lines=tuple(_line(member, of_tools, found) for member in named.values()),
            code=tuple(code),
            problems=tuple(problems),
        )

    async def _reach_jobs(self, member: Member, frame: Frame) -> MemberJobs:
        return self.jobs(member, frame)

    def _toolboxes(self, worker: Worker, near: Frame) -> Iterator[Member]:
        """The members whose tools a worker names as toolboxes: what has a file is no member's."""
        lacking = [name for name in worker.definition.toolboxes if not toolbox_files(worker, name, near, self._home)]
        everyone = self.roster(near).listed() if lacking else []
        for name in lacking:
            if any(member.name == name for member in everyone):
                try:
                    yield self.find(name, near)
                except GuildError:
                    continue  # it is told as a toolbox that is not there

    def _dispatched(self, worker: Worker, near: Frame) -> tuple[list[Member], list[GuildError]]:
        """Those that a worker may dispatch to, and what is wrong with what it names."""
        found: dict[Path, Member] = {}
        problems: list[GuildError] = []
        for name in worker.definition.members:
            if name == EVERY_WORKER:
                everyone = [one for one in self.roster(near).listed() if one.takes_work and self._trusted(one)]
                found |= {one.folder: one for one in everyone}
                continue
            try:
                member = self.find(name, near)
                if not member.takes_work:
                    raise takes_no_work(member)
                found[member.folder] = member
            except GuildError as error:
                problems.append(ToolUnavailable(f"members: {error.message}", where=worker.place, hint=error.hint))
        if twice := _one_name_twice(list(found.values())):
            message = f"members: there are two members named {twice!r}"
            problems.append(ToolUnavailable(message, where=worker.place, hint="Name one of them, with its place."))
        return list(found.values()), problems


def _one_name_twice(members: list[Member]) -> str | None:
    names = [member.name for member in members]
    return next((name for name in names if names.count(name) > 1), None)


def _line(member: Member, of_tools: list[Member], dispatched: list[Member]) -> str:
    """What a plan says of a member."""
    assert member.manifest is not None
    roles = [
        *(["may dispatch to it"] if member in dispatched else []),
        *(["uses its tools"] if member in of_tools else []),
    ]
    return f"{member.qualified}: {', '.join(roles)}; runs {'; '.join(wanted(member.manifest))}"
