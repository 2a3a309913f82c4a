"""Member jobs: dispatches, reads, cancels and deletes jobs of a member, and watches the running jobs.

`members-at-work.json` in the home lists the busy members, so that the next hall can restart them.
`member-questions.json` lists the ended jobs with open questions, so that the questions stay visible until answered.
Does not store jobs, because each member stores its own. Does not start members: `members.service` does.

Invariant: the type of each field in a response of a member is checked before use.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

from guildhall.activities.contract import AskedQuestion, Decision
from guildhall.core.atomic_file import replace_file
from guildhall.core.errors import GuildError, MemberFailed, MemberRefused, MemberUnreachable, Refused, UnknownJob
from guildhall.jobs.model import Detail, Dispatch, Job, JobDetails, JobResult, JobStatus, Page
from guildhall.members.model import QUESTIONS_FILE, WORKER_CAPABILITY, ActiveJob, Member
from guildhall.rpc.jsonrpc import INVALID_PARAMS, METHOD_NOT_FOUND
from guildhall.rpc.mcp_http_server import ANSWER, CANCEL, DELETE, DISPATCH, LIST, RESULT, RESUME, STATUS
from guildhall.tools.mcp.model import to_single_line

if TYPE_CHECKING:
    from types import UnionType

    from guildhall.core.clock import Clock
    from guildhall.members.client import MemberClient

    Reach = Callable[[], Awaitable[MemberClient]]
    OnStatus = Callable[[str, JobDetails | None], None]  # the id of a job, and its status or None if it is unknown

_POLL_INTERVAL_S = 3.0  # between two polls of a member's jobs
_MAX_FAILED_POLLS = 20  # consecutive polls without a response
_MAX_ENTRIES = 1_000  # that are read from each of the two files
_RETRY_AFTER_S = 0.1  # time to notice the exit of a process
_JOB_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}")  # safe as a file name
_log = logging.getLogger("guildhall.members")


class MemberJobs:
    """The jobs of a member. The first call starts the member."""

    def __init__(
        self,
        member: Member,
        reach: Reach,
        on_dispatch: Callable[[str], None] = lambda id: None,
        on_status: OnStatus = lambda id, details: None,
    ) -> None:
        """`reach` returns the client of the running member. `on_dispatch` is called with the id of each new job."""
        if not member.accepts_jobs:
            raise not_dispatchable_error(member)
        self.member = member
        self._reach = reach
        self._on_dispatch = on_dispatch
        self._on_status = on_status

    async def dispatch(self, dispatch: Dispatch) -> Job:
        params: dict[str, Any] = {"description": dispatch.description, "task": dispatch.task}
        if dispatch.config:
            params["config"] = dict(dispatch.config)
        response = await self._call(DISPATCH, params)
        job = self._job(response.job_id(), "running", description=dispatch.description)
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
        response = await self._call(LIST, {name: value for name, value in params.items() if value is not None})
        jobs = [self._row(row, detail) for row in response.rows("jobs")]
        return Page(jobs=jobs, next=response.text_or_none("nextCursor"))

    def _row(self, row: MemberResponse, detail: Detail) -> Job:
        if detail == "simple":
            return self._job(row.job_id(), row.status())
        description, summary = row.any_text("description"), row.text_or_none("summary")
        return self._job(row.job_id(), row.status(), description=description, summary=summary)

    async def status(self, id: str) -> JobDetails:
        try:
            details = parse_status(await self._call(STATUS, {"jobId": id}), self.member.name)
        except UnknownJob:
            self._on_status(id, None)
            raise
        self._on_status(id, details)
        return details

    async def result(self, id: str) -> JobResult:
        response = await self._call(RESULT, {"jobId": id})
        return JobResult(
            id=response.job_id(), output=response.any_text("output"), artifacts=response.texts("artifacts")
        )

    async def cancel(self, id: str) -> Job:
        return self._job(id, (await self._call(CANCEL, {"jobId": id})).status())

    async def delete(self, id: str, *, force: bool = False) -> None:
        await self.status(id)  # raises UnknownJob
        response = await self._call(DELETE, {"jobId": id, **({"force": True} if force else {})})
        if response.data.get("deleted") is not True:
            raise response.field_error("deleted", "true")
        self._on_status(id, None)

    async def resume(self, id: str, *, max_turns: int | None = None, budget: float | None = None) -> Job:
        limits = {"maxTurns": max_turns, "maxBudgetUsd": budget}
        await self.status(id)  # raises UnknownJob
        given = {name: value for name, value in limits.items() if value is not None}
        job = self._job(id, (await self._call(RESUME, {"jobId": id, **given})).status())
        self._on_dispatch(id)
        return job

    async def answer(self, id: str, text: str, question: str | None = None) -> str:
        """Answer a question of a job. Raise Refused if the member does not support it."""
        params = {"jobId": id, "answer": text, **({} if question is None else {"question": question})}
        await self.status(id)  # raises UnknownJob
        await self._call(ANSWER, params)
        await self.status(id)
        return question or ""

    def _job(self, id: str, status: JobStatus, *, description: str = "", summary: str | None = None) -> Job:
        return Job(
            id=id, worker=self.member.name, description=description, status=status, started_at="", summary=summary
        )

    async def _call(self, method: str, params: Mapping[str, Any]) -> MemberResponse:
        """Call a method. Repeat a call that did not reach the member, because its process had just exited."""
        try:
            try:
                response = await (await self._reach()).call(method, params)
            except MemberUnreachable as error:
                if error.sent:
                    raise
                await asyncio.sleep(_RETRY_AFTER_S)
                response = await (await self._reach()).call(method, params)
        except MemberRefused as error:
            # The only parameter of these methods is the id.
            if method in (STATUS, RESULT, CANCEL) and error.rpc_code == INVALID_PARAMS:
                message = f"unknown job {params['jobId'][:60]!r} of the member {self.member.name}"
                raise UnknownJob(message, hint="Check the id in the list of jobs of the member.") from None
            if method in (ANSWER, RESUME) and error.rpc_code == METHOD_NOT_FOUND:
                hint = (
                    "Dispatch the job again, with the answer in its task."
                    if method == ANSWER
                    else "Dispatch the job again."
                )
                raise Refused(f"the member {self.member.name} does not support {method}", hint=hint) from None
            raise
        return MemberResponse.parse(response, f"invalid response of the member {self.member.name} to {method}")


def not_dispatchable_error(member: Member) -> Refused:
    hint = f'Use another member. If this one has a worker, add "capabilities": ["{WORKER_CAPABILITY}"] to its manifest.'
    return Refused(f"the member {member.name} does not accept jobs", where=str(member.path), hint=hint)


def parse_status(response: MemberResponse, member: str) -> JobDetails:
    """Return the job in a response to `worker/status`."""
    decisions = [] if response.data.get("decisions") is None else response.rows("decisions")
    answered = [] if response.data.get("answered") is None else response.rows("answered")
    return JobDetails(
        job=Job(
            id=response.job_id(),
            worker=member,
            status=response.status(),
            description=response.any_text("description"),
            summary=response.text_or_none("summary"),
            error=response.text_or_none("error"),
            started_at=response.text("startedAt"),
            completed_at=response.text_or_none("completedAt"),
        ),
        questions=response.texts("questions"),
        decisions=[
            Decision(**{name: row.any_text(name) for name in ("question", "decision", "reasoning")})
            for row in decisions
        ],
        is_waiting=response.data.get("waiting") is True,
        question_log=[
            AskedQuestion(ask="", at="", question=row.any_text("question"), answer=row.any_text("answer"))
            for row in answered
        ],
    )


@dataclass(frozen=True)
class MemberResponse:
    """A response of a member. The methods return a field, or raise MemberRefused if it has another type."""

    data: dict[str, Any]
    context: str  # prefix of errors

    @staticmethod
    def parse(data: Any, context: str) -> MemberResponse:
        if not isinstance(data, dict):
            raise MemberRefused(f"{context}: not an object")
        return MemberResponse(cast("dict[str, Any]", data), context)

    def field_error(self, name: str, expected: str) -> MemberRefused:
        value = to_single_line(repr(self.data.get(name)))[:80]
        return MemberRefused(f"{self.context}: {name} is not {expected} (got {value})")

    def _get(self, name: str, type_: type | UnionType, expected: str) -> Any:
        value = self.data.get(name)
        if not isinstance(value, type_):
            raise self.field_error(name, expected)
        return value

    def text(self, name: str) -> str:
        value = self.any_text(name)
        if not value:
            raise self.field_error(name, "text with at least one character")
        return value

    def job_id(self) -> str:
        value = self.any_text("jobId")
        if not _JOB_ID.fullmatch(value):
            raise self.field_error("jobId", "an id of letters, digits, '_', '-' and '.'")
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

    def rows(self, name: str) -> list[MemberResponse]:
        values = self._get(name, list, "a list")
        return [MemberResponse.parse(value, f"{self.context}: {name}[{index}]") for index, value in enumerate(values)]


@dataclass(kw_only=True)
class _BusyMember:
    """A member with running jobs, as of the last poll, and the task that polls them."""

    name: str  # the shortest name that finds the member
    project: str | None  # the project of the member; None if the member is in the home
    jobs: dict[str, JobDetails | None]
    task: asyncio.Task[None]


class JobWatcher:
    """Polls the jobs of members until they have ended."""

    def __init__(self, file: Path, clock: Clock) -> None:
        """`file`: the list of busy members for the next hall."""
        self._file = file
        self._questions_file = file.with_name(QUESTIONS_FILE)
        self._clock = clock
        self._busy: dict[Path, _BusyMember] = {}  # by the member's folder

    @property
    def is_busy(self) -> bool:
        return bool(self._busy)

    def active_jobs(self) -> list[ActiveJob]:
        """Return the running jobs, and the ended jobs with open questions, as of the last poll."""
        running = [
            ActiveJob(member=busy.name, details=details, project=busy.project)
            for busy in self._busy.values()
            for details in busy.jobs.values()
            if details is not None
        ]
        ids = {job.id for job in running}
        return running + [job for job in self.unanswered_jobs() if job.id not in ids]

    def unanswered_jobs(self) -> list[ActiveJob]:
        """Return the ended jobs with open questions. Invalid content of the file is ignored."""
        unanswered: list[ActiveJob] = []
        for row in _read_object(self._questions_file).values():
            with suppress(GuildError):
                entry = MemberResponse.parse(row, QUESTIONS_FILE)
                member, project = entry.text("member"), entry.text_or_none("project")
                details = parse_status(MemberResponse.parse(entry.data.get("status"), QUESTIONS_FILE), member)
                unanswered.append(ActiveJob(member=member, details=details, project=project))
        return unanswered

    def update(self, member: Member, name: str, root: Path, id: str, details: JobDetails | None) -> None:
        """Record the status of a job. Keep an ended job with open questions. `details`: None if the job is unknown."""
        is_running = details is not None and details.job.status == "running"
        if (busy := self._busy.get(member.folder)) is not None and id in busy.jobs:
            if is_running:
                busy.jobs[id] = details
            else:
                del busy.jobs[id]
                if not busy.jobs:
                    self._unlist(member)
        rows = _read_object(self._questions_file)
        key = f"{member.folder}/{id}"
        if details is not None and details.questions and details.job.status in ("completed", "failed"):
            project = str(root) if member.scope == "project" else None
            changed = {**rows, key: {"member": name, "project": project, "status": details.as_wire()}}
        else:
            changed = {other: row for other, row in rows.items() if other != key}
        if changed != rows:
            _write_object(self._questions_file, changed)

    def count_jobs(self, folder: Path) -> int:
        return len(self._busy[folder].jobs) if folder in self._busy else 0

    def busy_members(self) -> list[tuple[Path, Path]]:
        """Return the folder and the project of each member in the file."""
        return [(Path(folder), Path(root)) for folder, root in self._read().items()]

    def watch(self, member: Member, name: str, root: Path, reach: Reach, job: str | None = None) -> None:
        """Poll a new job, or all running jobs of the member. `name`: the shortest name that finds the member."""
        project = str(root) if member.scope == "project" else None
        if (busy := self._busy.get(member.folder)) is None:
            jobs: dict[str, JobDetails | None] = {}
            source = MemberJobs(member, reach, on_status=partial(self.update, member, name, root))
            task = asyncio.create_task(self._poll_member(source, root, jobs, everything=job is None))
            busy = _BusyMember(name=name, project=project, jobs=jobs, task=task)
            self._busy[member.folder] = busy
        busy.name, busy.project = name, project
        if job is not None:
            busy.jobs.setdefault(job, None)
            self._list_for_next_hall(member, root)

    def _list_for_next_hall(self, member: Member, root: Path) -> None:
        self._write({**self._read(), str(member.folder): str(root)})

    def _unlist(self, member: Member) -> None:
        self._write({folder: root for folder, root in self._read().items() if folder != str(member.folder)})

    async def stop_polling(self, folder: Path) -> None:
        """Stop polling a member. The file still lists it if its jobs have not ended."""
        if (busy := self._busy.get(folder)) is not None:
            busy.task.cancel()
            await asyncio.gather(busy.task, return_exceptions=True)

    async def close(self) -> None:
        """Stop polling. The file still lists the busy members, because their jobs have not ended."""
        tasks = [busy.task for busy in self._busy.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _poll_member(
        self, source: MemberJobs, root: Path, jobs: dict[str, JobDetails | None], *, everything: bool
    ) -> None:
        member, failures = source.member, 0
        try:
            while everything or jobs:
                try:
                    if everything:
                        page = await source.page(detail="simple")
                        jobs |= {job.id: None for job in page.jobs if job.status == "running"}
                        everything = False
                        if jobs:
                            self._list_for_next_hall(member, root)
                    for job in tuple(jobs):
                        with suppress(UnknownJob):
                            await source.status(job)
                    failures = 0
                except MemberFailed:  # the member exited, and is restarted
                    failures += 1
                    if failures > _MAX_FAILED_POLLS:
                        raise
                if jobs or everything:
                    await self._clock.sleep(_POLL_INTERVAL_S)
            self._unlist(member)
        except GuildError as error:
            _log.warning("cannot poll the jobs of the member %s: %s", member.name, error)
        finally:
            del self._busy[member.folder]

    def _read(self) -> dict[str, str]:
        """Return the project of each busy member by its folder. Invalid content is ignored."""
        busy = _read_object(self._file)
        return {folder: root for folder, root in busy.items() if isinstance(root, str) and folder and root}

    def _write(self, busy: dict[str, str]) -> None:
        if busy != self._read():
            _write_object(self._file, busy)


def _read_object(file: Path) -> dict[str, Any]:
    """Return the entries of a JSON object. Invalid content is ignored."""
    try:
        value: Any = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    entries = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    return dict(list(entries.items())[:_MAX_ENTRIES])


def _write_object(file: Path, entries: Mapping[str, Any]) -> None:
    with suppress(OSError):  # the file is only a list for later commands
        if entries:
            replace_file(file, json.dumps(entries).encode(), mode=0o600)
        else:
            file.unlink(missing_ok=True)
