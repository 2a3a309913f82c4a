"""Member jobs: dispatches, reads, cancels and deletes jobs of a member, and watches the running jobs.

`members-at-work.json` in the home lists the busy members, so that the next hall can restart them.
Does not store jobs, because each member stores its own. Does not start members: `members.service` does.

Invariant: answers of members are not trusted. The type of each field is checked before use.
"""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

from guildhall.activities.contract import Decision
from guildhall.core.atomic_file import replace_file
from guildhall.core.errors import GuildError, MemberFailed, MemberRefused, MemberUnreachable, Refused, UsageError
from guildhall.jobs.model import Detail, Dispatch, Job, JobDetails, JobResult, JobStatus, Page
from guildhall.members.model import WORKER_CAPABILITY, ActiveJob, Member
from guildhall.rpc.jsonrpc import METHOD_NOT_FOUND
from guildhall.rpc.mcp_app import ANSWER, CANCEL, DELETE, DISPATCH, LIST, RESULT, STATUS
from guildhall.tools.mcp.model import to_short_line

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from types import UnionType

    from guildhall.core.clock import Clock
    from guildhall.members.client import MemberClient

    Reach = Callable[[], Awaitable[MemberClient]]

_POLL_S = 3.0  # between two polls of a member's jobs
_MAX_FAILURES = 20  # consecutive polls without an answer
_MAX_ENTRIES = 1_000  # of the file
_RETRY_AFTER_S = 0.1  # by then, the exit of a process was noticed
_log = logging.getLogger("guildhall.members")


class MemberJobs:
    """The jobs of a member, which is started on first use."""

    def __init__(self, member: Member, reach: Reach, on_dispatch: Callable[[str], None] | None = None) -> None:
        """`reach` returns the client of the running member. `on_dispatch` is called with the id of each new job."""
        if not member.accepts_jobs:
            raise not_dispatchable(member)
        self.member = member
        self._reach = reach
        self._on_dispatch = on_dispatch

    async def dispatch(self, dispatch: Dispatch) -> Job:
        params: dict[str, Any] = {"description": dispatch.description, "task": dispatch.task}
        if dispatch.config:
            params["config"] = dict(dispatch.config)
        answer = await self._call(DISPATCH, params)
        job = self._job(answer.text("jobId"), "running", description=dispatch.description)
        if self._on_dispatch is not None:
            self._on_dispatch(job.id)
        return job

    async def page(
        self,
        *,
        detail: Detail = "detailed",
        filter: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Page:
        params = {"detail": detail, "filter": filter, "limit": limit, "cursor": cursor}
        answer = await self._call(LIST, {name: value for name, value in params.items() if value is not None})
        jobs = [self._row(row, detail) for row in answer.rows("jobs")]
        return Page(jobs=jobs, next=answer.text_or_none("nextCursor"))

    def _row(self, row: Answer, detail: Detail) -> Job:
        if detail == "simple":
            return self._job(row.text("jobId"), row.status())
        description, summary = row.any_text("description"), row.text_or_none("summary")
        return self._job(row.text("jobId"), row.status(), description=description, summary=summary)

    async def status(self, id: str) -> JobDetails:
        return read_status(await self._call(STATUS, {"jobId": id}), self.member.name)

    async def result(self, id: str) -> JobResult:
        answer = await self._call(RESULT, {"jobId": id})
        return JobResult(id=answer.text("jobId"), output=answer.any_text("output"), artifacts=answer.texts("artifacts"))

    async def cancel(self, id: str) -> Job:
        return self._job(id, (await self._call(CANCEL, {"jobId": id})).status())

    async def delete(self, id: str, *, force: bool = False) -> None:
        if force:
            raise UsageError("force can only be used with jobs of the hall, not with jobs of a member")
        answer = await self._call(DELETE, {"jobId": id})
        if answer.data.get("deleted") is not True:
            raise answer.field_error("deleted", "true")

    async def answer(self, id: str, text: str, question: str | None = None) -> str:
        """Answer a question of a job. Raise Refused if the member does not accept answers."""
        params = {"jobId": id, "answer": text, **({} if question is None else {"question": question})}
        try:
            await self._call(ANSWER, params)
        except MemberRefused as error:
            if error.rpc_code != METHOD_NOT_FOUND:
                raise
            hint = "See the documentation of the member for how to answer."
            raise Refused(f"the member {self.member.name} does not accept answers", hint=hint) from None
        return question or ""

    def _job(self, id: str, status: JobStatus, *, description: str = "", summary: str | None = None) -> Job:
        return Job(
            id=id, worker=self.member.name, description=description, status=status, started_at="", summary=summary
        )

    async def _call(self, method: str, params: Mapping[str, Any]) -> Answer:
        """Call a method. Repeat a call that cannot have reached the member, because it was exiting."""
        try:
            answer = await (await self._reach()).call(method, params)
        except MemberUnreachable as error:
            if error.sent:
                raise
            await asyncio.sleep(_RETRY_AFTER_S)
            answer = await (await self._reach()).call(method, params)
        return Answer.parse(answer, f"the member {self.member.name} answered {method}")


def not_dispatchable(member: Member) -> Refused:
    hint = f'Jobs need "capabilities": ["{WORKER_CAPABILITY}"] in the manifest.'
    return Refused(f"the member {member.name} does not accept jobs", where=str(member.path), hint=hint)


def read_status(answer: Answer, member: str) -> JobDetails:
    """Return the job in an answer to `worker/status`."""
    decisions = [] if answer.data.get("decisions") is None else answer.rows("decisions")
    return JobDetails(
        job=Job(
            id=answer.text("jobId"),
            worker=member,
            status=answer.status(),
            description=answer.any_text("description"),
            summary=answer.text_or_none("summary"),
            error=answer.text_or_none("error"),
            started_at=answer.text("startedAt"),
            completed_at=answer.text_or_none("completedAt"),
        ),
        questions=answer.texts("questions"),
        decisions=[
            Decision(**{name: row.any_text(name) for name in ("question", "decision", "reasoning")})
            for row in decisions
        ],
        is_waiting=answer.data.get("waiting") is True,
    )


@dataclass(frozen=True)
class Answer:
    """The answer of a member. The methods return a field, or raise MemberRefused if it has another type."""

    data: dict[str, Any]
    context: str  # for errors

    @staticmethod
    def parse(data: Any, context: str) -> Answer:
        if not isinstance(data, dict):
            raise MemberRefused(f"{context}: not an object")
        return Answer(cast("dict[str, Any]", data), context)

    def field_error(self, name: str, expected: str) -> MemberRefused:
        value = to_short_line(repr(self.data.get(name)))[:80]
        return MemberRefused(f"{self.context}: {name} is not {expected} (got {value})")

    def _get(self, name: str, kind: type | UnionType, expected: str) -> Any:
        value = self.data.get(name)
        if not isinstance(value, kind):
            raise self.field_error(name, expected)
        return value

    def text(self, name: str) -> str:
        value = self.any_text(name)
        if not value:
            raise self.field_error(name, "text")
        return value

    def text_or_none(self, name: str) -> str | None:
        return self._get(name, str | None, "text or null")

    def any_text(self, name: str) -> str:
        return self._get(name, str, "text")

    def status(self) -> JobStatus:
        value: Any = self.data.get("status")
        if value not in get_args(JobStatus):
            raise self.field_error("status", f"one of {', '.join(get_args(JobStatus))}")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        values = self._get(name, list | None, "a list or null") or ()
        if not all(isinstance(value, str) for value in values):
            raise self.field_error(name, "a list of texts")
        return tuple(values)

    def rows(self, name: str) -> list[Answer]:
        values = self._get(name, list, "a list")
        return [Answer.parse(value, f"{self.context}: {name}[{index}]") for index, value in enumerate(values)]


@dataclass(kw_only=True)
class _BusyMember:
    """A member with running jobs, as of the last poll, and the task that polls them."""

    name: str  # the shortest name that finds the member
    project: str | None  # the only project in which it is found
    jobs: dict[str, JobDetails | None]
    task: asyncio.Task[None]


class JobWatcher:
    """Polls the jobs of members until they have ended."""

    def __init__(self, file: Path, clock: Clock) -> None:
        """`file`: lists the busy members for the next hall."""
        self._file = file
        self._clock = clock
        self._busy: dict[Path, _BusyMember] = {}  # by the member's folder

    @property
    def is_busy(self) -> bool:
        return bool(self._busy)

    def active_jobs(self) -> list[ActiveJob]:
        """Return the running jobs, as of the last poll."""
        return [
            ActiveJob(member=busy.name, details=details, project=busy.project)
            for busy in self._busy.values()
            for details in busy.jobs.values()
            if details is not None
        ]

    def count(self, folder: Path) -> int:
        return len(self._busy[folder].jobs) if folder in self._busy else 0

    def busy_members(self) -> list[tuple[Path, Path]]:
        """Return folder and project of the members that are listed in the file."""
        return [(Path(folder), Path(root)) for folder, root in self._read().items()]

    def watch(self, member: Member, name: str, root: Path, reach: Reach, job: str | None = None) -> None:
        """Poll a new job, or all running jobs of the member. `name`: the shortest name that finds the member."""
        project = str(root) if member.scope == "project" else None
        if (busy := self._busy.get(member.folder)) is None:
            jobs: dict[str, JobDetails | None] = {}
            task = asyncio.create_task(self._poll_member(member, reach, jobs, everything=job is None))
            busy = _BusyMember(name=name, project=project, jobs=jobs, task=task)
            self._busy[member.folder] = busy
        busy.name, busy.project = name, project
        if job is not None:
            busy.jobs.setdefault(job, None)
        self._write({**self._read(), str(member.folder): str(root)})

    async def close(self) -> None:
        """Stop polling. The file still lists the busy members, because their jobs have not ended."""
        tasks = [busy.task for busy in self._busy.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _poll_member(
        self, member: Member, reach: Reach, jobs: dict[str, JobDetails | None], *, everything: bool
    ) -> None:
        source = MemberJobs(member, reach)
        failures = 0
        try:
            while everything or jobs:
                try:
                    if everything:
                        page = await source.page(detail="simple")
                        jobs |= {job.id: None for job in page.jobs if job.status == "running"}
                        everything = False
                    await _poll(jobs, source)
                    failures = 0
                except MemberFailed:  # the member exited, and is restarted
                    failures += 1
                    if failures > _MAX_FAILURES:
                        raise
                if jobs or everything:
                    await self._clock.sleep(_POLL_S)
            busy = self._read()
            busy.pop(str(member.folder), None)
            self._write(busy)
        except GuildError as error:
            _log.warning("cannot poll the jobs of the member %s: %s", member.name, error)
        finally:
            del self._busy[member.folder]

    def _read(self) -> dict[str, str]:
        """Return the project of each busy member by its folder. Invalid content is ignored."""
        try:
            busy: Any = json.loads(self._file.read_text())
        except (OSError, ValueError, RecursionError):
            return {}
        if not isinstance(busy, dict):
            return {}
        pairs = list(cast("dict[str, Any]", busy).items())[:_MAX_ENTRIES]
        return {folder: root for folder, root in pairs if isinstance(root, str) and folder and root}

    def _write(self, busy: dict[str, str]) -> None:
        if busy == self._read():
            return
        with suppress(OSError):  # only the next hall needs the file
            if not busy:
                self._file.unlink(missing_ok=True)
                return
            replace_file(self._file, json.dumps(busy).encode(), mode=0o666)


async def _poll(jobs: dict[str, JobDetails | None], source: MemberJobs) -> None:
    """Update the status of jobs, and remove ended jobs."""
    for job in tuple(jobs):
        try:
            details = await source.status(job)
        except MemberRefused as error:
            if error.rpc_code is None:  # an invalid answer
                raise
            details = None  # deleted, or unknown to the member
        if details is not None and details.job.status == "running":
            jobs[job] = details
        else:
            del jobs[job]
