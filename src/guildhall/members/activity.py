"""The watcher of member jobs: tracks running jobs of members, and records the busy members for the next hall.

It polls the jobs every 3 seconds. The hall does not exit while a job is running. `members-at-work.json` in the home
names the busy members, and the next hall starts them again.
Does not start members (`service.py`) and does not store jobs: each member has its own.
"""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from guildhall.core.atomic_file import replace_file
from guildhall.core.errors import GuildError, MemberFailed, MemberRefused
from guildhall.members.jobs import MemberJobs
from guildhall.members.model import AtWork, Member

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from guildhall.core.clock import Clock
    from guildhall.jobs.model import JobShown
    from guildhall.members.client import MemberClient

    Reach = Callable[[], Awaitable[MemberClient]]

FILE = "members-at-work.json"  # in the home
_EVERY = 3.0  # seconds between two looks
_MOST_FAILURES = 20  # looks in a row at a member that does not answer
_MOST = 1_000  # entries of the file that are believed
_log = logging.getLogger("guildhall.members")


class Work:
    """Watches the jobs of members until they have ended."""

    def __init__(self, file: Path, clock: Clock) -> None:
        """`file`: where it is written down, for the next hall."""
        self._file = file
        self._clock = clock
        self._going_on: dict[Path, dict[str, JobShown | None]] = {}  # by the member's folder: its jobs, as last seen
        self._found: dict[Path, tuple[str, str | None]] = {}  # by what name, and in which project alone
        self._watching: dict[Path, asyncio.Task[None]] = {}

    @property
    def busy(self) -> bool:
        return bool(self._watching)

    def seen(self) -> list[AtWork]:
        """The jobs that go on, as they were when they were last looked at."""
        return [
            AtWork(member=self._found[folder][0], shown=shown, project=self._found[folder][1])
            for folder, jobs in self._going_on.items()
            for shown in jobs.values()
            if shown is not None
        ]

    def count(self, folder: Path) -> int:
        """How many jobs of a member go on."""
        return len(self._going_on.get(folder, ()))

    def left_behind(self) -> list[tuple[Path, Path]]:
        """The members that were at work when an earlier hall ended: each one's folder, and the project it was in."""
        return [(Path(folder), Path(root)) for folder, root in self._read().items()]

    def began(self, member: Member, called: str, root: Path, reach: Reach, job: str | None = None) -> None:
        """A job was dispatched; None: whatever the member has going on. `called`: the name that finds the member."""
        jobs = self._going_on.setdefault(member.folder, {})
        self._found[member.folder] = (called, str(root) if member.scope == "project" else None)
        if job is not None:
            jobs.setdefault(job, None)
        self._write({**self._read(), str(member.folder): str(root)})
        if member.folder not in self._watching:
            task = asyncio.create_task(self._watch(member, reach, everything=job is None))
            self._watching[member.folder] = task

    async def close(self) -> None:
        """Stops watching. What is written down stays: those jobs have not ended."""
        tasks = list(self._watching.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self, member: Member, reach: Reach, *, everything: bool) -> None:
        jobs, source = self._going_on[member.folder], MemberJobs(member, reach)
        failures = 0
        try:
            while everything or jobs:
                try:
                    if everything:
                        page = await source.page(detail="simple")
                        jobs |= {job.id: None for job in page.jobs if job.status == "running"}
                        everything = False
                    await _look(jobs, source)
                    failures = 0
                except MemberFailed:  # it has just ended, and is started again
                    failures += 1
                    if failures > _MOST_FAILURES:
                        raise
                if jobs or everything:
                    await self._clock.sleep(_EVERY)
            told = self._read()
            told.pop(str(member.folder), None)
            self._write(told)
        except GuildError as error:
            _log.warning("what the member %s has going on is not known: %s", member.name, error)
        finally:
            del self._watching[member.folder]
            del self._going_on[member.folder]

    def _read(self) -> dict[str, str]:
        try:
            told: Any = json.loads(self._file.read_text())
        except (OSError, ValueError, RecursionError):
            return {}
        if not isinstance(told, dict):
            return {}
        pairs = list(cast("dict[str, Any]", told).items())[:_MOST]
        return {folder: root for folder, root in pairs if isinstance(root, str) and folder and root}

    def _write(self, told: dict[str, str]) -> None:
        if told == self._read():
            return
        with suppress(OSError):  # it is a help for the next hall, and nothing else depends on it
            if not told:
                self._file.unlink(missing_ok=True)
                return
            replace_file(self._file, json.dumps(told).encode(), mode=0o666)


async def _look(jobs: dict[str, JobShown | None], source: MemberJobs) -> None:
    """Update the status of jobs. Jobs that have ended are removed."""
    for job in tuple(jobs):
        jobs[job] = await _running(source, job)
        if jobs[job] is None:
            del jobs[job]


async def _running(source: MemberJobs, job: str) -> JobShown | None:
    """Return the status of a job, or None if it is not running."""
    try:
        shown = await source.status(job)
    except MemberRefused as error:
        if error.rpc_code is None:  # no answer at all
            raise
        return None  # it was deleted, or the member does not know it any more
    return shown if shown.job.status == "running" else None
