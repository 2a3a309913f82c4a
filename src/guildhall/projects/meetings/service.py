"""The meeting service: the operations on meetings, the close of a meeting, and the recovery when a hall starts.

The steps of a close are: record the request to close, commit the work on the branch of the meeting, merge work and
notes into the integration branch as one commit, set the row to closed, remove checkout, branch and transcript. A merge
conflict leaves the meeting open.
Does not implement requests (`meeting_requests.py`) or conversations (`sessions.py`).

Invariant: each step of a close is idempotent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from guildhall.core.errors import Conflict, GuildError, MergeConflict, NotDeletable, NotFound
from guildhall.core.ids import MEETING, new_id
from guildhall.projects.meetings import artifact, meeting_requests, records
from guildhall.projects.meetings.assignee_tools import SERVER, meeting_profile, meeting_tools
from guildhall.projects.meetings.context import MeetingContext, Summary, render_transcript
from guildhall.projects.meetings.model import By, Meeting, MeetingDetails, branch_name, check_message, topic_line
from guildhall.projects.meetings.sessions import Sessions
from guildhall.projects.meetings.states import ENDED, Closing, MeetingStatus, check_event, check_open, next_step
from guildhall.runs.asks import check_answer
from guildhall.runs.assembly.preflight import check_conversation
from guildhall.runs.model import ENDED as RUN_ENDED
from guildhall.runs.model import Answer, Ask, Run
from guildhall.runs.owner_hooks import RunHooks, replay_hooks
from guildhall.runs.purpose import MeetingPurpose
from guildhall.runs.record import records as run_records

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from guildhall.core.events import Event
    from guildhall.core.request_frame import Frame
    from guildhall.projects.git.snapshot import UncommittedFiles
    from guildhall.projects.model import Project
    from guildhall.runs.execution.preparation import Grant, Prepared

_log = logging.getLogger("guildhall.meetings")


class Meetings:
    """The operations on meetings."""

    def __init__(self, context: MeetingContext) -> None:
        self.context = context
        self._sessions = Sessions(context)

    # queries

    def get(self, id: str) -> Meeting:
        return self.context.get(id)

    def list_meetings(self, project: str | None = None, status: MeetingStatus | None = None) -> list[Meeting]:
        """Return meetings, newest first."""
        return self.context.list_meetings(project, status)

    async def details(self, id: str) -> MeetingDetails:
        details = self.context.details(id)
        return replace(details, warnings=await asyncio.to_thread(self.context.artifact_warnings, details.meeting))

    # requests

    async def request(
        self,
        project: Project,
        worker: str,
        topic: str,
        *,
        by: By,
        made_by: str,
        linked: Sequence[str] = (),
        **limits: Any,
    ) -> Meeting:
        """Request a meeting for a run. The ask in the inbox stays open after that run has ended.

        `limits`: those of a meeting (`model.LIMITS`).
        """
        self.context.redact(topic_line(topic))  # stores the redacted text
        request = partial(meeting_requests.request, self.context, project, worker, topic, linked=linked)
        return await self._then_write_artifact(request(by=by, made_by=made_by, **limits))

    async def accept(self, id: str) -> Meeting:
        return await self._then_write_artifact(meeting_requests.accept(self.context, id))

    async def decline(self, id: str, reason: str | None = None) -> Meeting:
        redacted = self.context.redact(reason or "") or None
        return await self._then_write_artifact(meeting_requests.decline(self.context, id, redacted))

    async def withdraw(self, run_id: str, reason: str) -> None:
        """Withdraw the requests that the hall has made for a run."""
        for meeting in await meeting_requests.withdraw(self.context, run_id, reason):
            await asyncio.to_thread(artifact.write_artifact, self.context, meeting)

    async def defer(self, id: str, until: str) -> Meeting:
        return await self._then_write_artifact(meeting_requests.defer(self.context, id, until))

    async def answer(self, ask: Ask, answer: Answer) -> Meeting:
        """Accept, decline or defer the request that an ask belongs to."""
        meeting, answer = meeting_requests.find_by_ask(self.context, ask.id), check_answer(ask, answer)
        if answer.choice == "yes":
            return await self.accept(meeting.id)
        if answer.choice == "no":
            return await self.decline(meeting.id, answer.note)
        return await self.defer(meeting.id, answer.choice)

    async def _then_write_artifact(self, work: Awaitable[Meeting]) -> Meeting:
        meeting = await work
        await asyncio.to_thread(artifact.write_artifact, self.context, meeting)
        return meeting

    # conversation

    async def open(
        self, worker: str, message: str, frame: Frame, *, project: str | None = None, **limits: Any
    ) -> Meeting:
        """Open a meeting with the first user message. The worker answers when the user joins.

        `limits`: those of a meeting (`model.LIMITS`).
        """
        context, message = self.context, check_message(message)
        chosen = self._choose_project(frame, project)
        now, id = context.now(), new_id(MEETING)
        meeting = Meeting(
            id=id,
            project=chosen.name,
            worker=worker,
            topic=topic_line(message),
            status="open",
            branch=branch_name(id),
            created_at=now,
            changed_at=now,
            **limits,
        )
        project_frame = context.project_frame(meeting, frame)
        try:
            chosen_worker = context.find_worker(worker, project_frame)
        except NotFound:
            if not worker.startswith(f"{MEETING}-"):
                raise
            unknown = f"unknown meeting or worker {worker[:60]!r}"
            raise NotFound(unknown, hint="List the meetings: guild ls meetings") from None
        check_conversation(chosen_worker)
        has_budget = (meeting.budget or chosen_worker.definition.limits.max_budget_usd) is not None
        context.checks.check_usable(chosen_worker, project_frame, has_budget=has_budget)
        context.redact(meeting.topic)  # stores the redacted text

        def write(connection: Connection) -> Meeting:
            meeting_requests.check_open_count(connection, chosen.name, chosen.settings.max_meetings)
            records.add(connection, meeting, "open", "opened by the user")
            records.add_message(connection, id, "", message, now)
            return meeting

        return await self._then_write_artifact(context.store.write(write))

    def _choose_project(self, frame: Frame, name: str | None) -> Project:
        projects = self.context.projects()
        if name is not None:
            return projects.get(name)
        if (current := projects.find_at(frame.cwd)) is not None:
            return current
        raise NotFound(
            f"cannot open a meeting: {frame.cwd} is not in a project",
            hint="Register this repository with `guild project add .`, or choose a project with --project NAME.",
        )

    async def join(
        self,
        id: str,
        frame: Frame,
        *,
        messages: Sequence[str] = (),
        renew: bool = False,
        grant: Grant | None = None,
        is_daemon: bool = True,
    ) -> AsyncGenerator[Event]:
        """Record user messages, then yield the events until every recorded message is answered.

        There are no events if no answer is due. `renew`: start a new session with a summary of the conversation.
        `grant`: raise the limits.
        """
        checked = [check_message(message) for message in messages]
        last = await self._add_messages(id, checked) if checked else self.context.last_message_number(id)
        first = last - max(len(checked) - 1, 0)
        turn = self._sessions.turn(id, first, last, frame, renew=renew, grant=grant, is_daemon=is_daemon)
        async with aclosing(turn) as events:
            async for event in events:
                yield event

    async def _add_messages(self, id: str, messages: Sequence[str]) -> int:
        """Record user messages, and return the number of the last one."""
        now = self.context.now()

        def write(connection: Connection) -> int:
            meeting = records.get(connection, id)
            check_open(meeting)
            if meeting.closing is not None:  # the user continues instead of closing the meeting
                records.update_fields(connection, id, now, closing=None)
            return [records.add_message(connection, id, meeting.run or "", text, now) for text in messages][-1]

        return await self.context.store.write(write)

    async def interrupt(self, id: str) -> None:
        """Stop the answer in progress. The meeting stays open."""
        async with self._sessions.locks[id]:
            meeting = self.get(id)
            if meeting.run is not None:
                await self._sessions.interrupt(meeting)

    # close and delete

    async def close_meeting(
        self, id: str, frame: Frame, *, summarise: bool = True, leave_work: bool = False
    ) -> Meeting:
        """Close a meeting and write its notes. A client that disconnects does not interrupt the close."""
        closing = Closing(summarise=summarise, leave_work=leave_work)
        return await asyncio.shield(self._close(self.get(id).id, frame, closing))

    async def _close(self, id: str, frame: Frame, closing: Closing) -> Meeting:
        async with self._sessions.locks[id]:
            return await perform_close(self.context, id, frame, closing)

    async def delete(self, id: str) -> None:
        """Delete the row and messages of an ended meeting. The notes and the runs remain."""
        meeting = self.get(id)
        if meeting.status not in ENDED:
            is_open = meeting.status == "open"
            hint = f"Close it first: guild meet {id} --close" if is_open else f"Decline it first: guild answer {id} no"
            raise NotDeletable(f"cannot delete meeting {id}: it is {meeting.status}", hint=hint)
        await clean_up(self.context, meeting)
        now = self.context.now()
        await self.context.store.write(lambda connection: records.remove(connection, id, now))

    # the owner of runs (RunOwner)

    async def prepare_resume(self, run_id: str, frame: Frame, grant: Grant | None = None) -> Prepared:
        """Prepare a stopped run of a meeting to resume in its checkout."""
        async with self._sessions.locks[self.context.history.purpose(run_id, MeetingPurpose).id]:
            return await self._sessions.resume(run_id, frame, grant)

    async def stop(self, run_id: str) -> list[str]:
        """Close the meeting of a run without asking for a summary."""
        meeting = self.get(self.context.history.purpose(run_id, MeetingPurpose).id)
        if meeting.status != "open":
            message = f"cannot stop meeting {meeting.id}: it is {meeting.status}"
            raise Conflict(message, hint=f"Show it: guild show {meeting.id}")
        await self.close_meeting(meeting.id, self.context.hall_frame(meeting), summarise=False)
        return [run_id]

    async def record_resume_failure(self, run: Run, error: GuildError) -> None:
        """Fail a run that cannot be resumed. Its meeting stays open, and the next message starts a new session."""
        status = self.context.history.get(run.id).status
        if status == "running" or status in RUN_ENDED:
            return
        now = self.context.now()
        await self.context.store.write(lambda c: run_records.fail_run(c, run.id, error.as_dict(), now))

    async def apply_answer(self, ask: Ask) -> None:
        """Do nothing: a run applies the answers to its asks itself."""

    # recovery

    def start_resuming(self, resume: Callable[[Run], Awaitable[None]]) -> None:
        """Start the recovery of meetings. Their runs are resumed when the user joins, so `resume` is not used."""
        self._sessions.start_task(self.recover())

    async def recover(self) -> None:
        """Do the next step of every meeting. Errors are logged and do not stop the rest."""
        await asyncio.to_thread(artifact.synchronise, self.context)
        for meeting in self.context.list_meetings():
            try:
                await self._do_next_step(meeting)
            except GuildError as error:
                _log.warning("%s: %s", meeting.id, error)

    async def _do_next_step(self, meeting: Meeting) -> None:
        match next_step(meeting):
            case "close":
                await self._complete_close(meeting)
            case "restore_checkout":
                await asyncio.to_thread(self._restore_checkout, meeting)
            case "clean_up":
                await clean_up(self.context, meeting)
            case _:
                pass

    async def _complete_close(self, meeting: Meeting) -> None:
        """Complete an interrupted close, unless the user has sent a message meanwhile."""
        try:
            frame = self.context.hall_frame(meeting)
            async with self._sessions.locks[meeting.id]:
                current = self.get(meeting.id)
                if current.closing is not None and next_step(current) == "close":
                    await perform_close(self.context, meeting.id, frame, current.closing)
        except GuildError as error:
            _log.warning("%s stays open: %s", meeting.id, error)
            await self._do_next_step(replace(meeting, closing=None))

    def _restore_checkout(self, meeting: Meeting) -> None:
        """Create the checkout of an open meeting if it is missing."""
        assert meeting.branch is not None
        scope = self.context.checkout_scope(meeting)
        self.context.worktrees.restore(self.context.project(meeting), meeting.id, meeting.branch, scope)

    @property
    def has_pending_resume(self) -> bool:
        """Return True while a background task runs."""
        return self._sessions.is_busy

    def close(self) -> None:
        self._sessions.close()


def meeting_replay_hooks(run: Run) -> RunHooks | None:
    """Return the replay hooks of a run of a meeting, or None for other runs."""
    if run.kind != "meeting":
        return None
    return replay_hooks(meeting_tools(), meeting_profile, is_conversation=True, server=SERVER)


# the close


async def perform_close(context: MeetingContext, id: str, frame: Frame, closing: Closing) -> Meeting:
    """Close a meeting. The caller holds its lock, so that its run is not started or resumed meanwhile.

    Raise MergeConflict, and leave the meeting open, if its work cannot be merged.
    """
    meeting = context.get(id)
    check_event(meeting, "close")
    if meeting.run is not None and context.is_alive(meeting.run):
        await context.runs().pause(meeting.run, "user")

    def begin(connection: Connection) -> Meeting:
        now = context.now()
        records.add_note(connection, id, "begin_close", "the user requested to close it", now, **vars(closing))
        return records.update_fields(connection, id, now, closing=closing)

    meeting = await context.store.write(begin)
    summary = await _summarise(context, meeting, frame) if closing.summarise else Summary()
    try:
        await asyncio.to_thread(_merge, context, meeting, summary)
    except MergeConflict as error:
        await context.store.write(partial(_record_conflict, id=id, error=error, now=context.now()))
        hint = f"The meeting stays open. Discuss these files: guild meet {id}. Then close the meeting again. "
        hint += f"Or leave the work on the branch {meeting.branch}: guild meet {id} --close --leave-work"
        message = f"cannot close meeting {id}: {error.message}"
        raise MergeConflict(message, files=error.files, hint=hint) from None
    closed = await context.store.write(lambda c: _record_close(c, meeting, summary, context.now()))
    await clean_up(context, closed)
    return closed


async def _summarise(context: MeetingContext, meeting: Meeting, frame: Frame) -> Summary:
    if meeting.run is None:
        return Summary(problem="the user did not join")
    transcript = render_transcript(context.list_exchanges(meeting.id), meeting.worker)
    model = context.history.get(meeting.run).model
    return await context.summarise(transcript, context.project_frame(meeting, frame), model)


def _merge(context: MeetingContext, meeting: Meeting, summary: Summary) -> None:
    """Merge the work into the integration branch, and write the notes."""
    workspace, redact = context.workspace(meeting), context.redact
    notes = artifact.render_notes(context.details(meeting.id), summary, redact)
    revision = context.revision(meeting.id) + 1  # counts the event `close`, which is recorded after the merge
    text = artifact.render_artifact(replace(meeting, status="closed"), notes, redact=redact, revision=revision)
    files = {meeting.path: text}
    message = f"Meeting with {meeting.worker}: {redact(meeting.topic)}"
    has_branch = workspace.tip() is not None  # False if the meeting had no session
    if has_branch:
        workspace.commit(message)
    if has_branch and not meeting.is_work_left:
        workspace.merge(message, files)
    else:
        workspace.branches.write_records(files, message, meeting.worker)


def _record_conflict(connection: Connection, *, id: str, error: MergeConflict, now: str) -> None:
    records.update_fields(connection, id, now, closing=None)
    records.add_note(connection, id, "conflict", f"not closed: {error.message}", now, files=list(error.files))


def _record_close(connection: Connection, meeting: Meeting, summary: Summary, now: str) -> Meeting:
    """Apply `close` to the meeting, and complete the runs of its sessions, including failed runs."""
    changes: dict[str, Any] = {"notes": meeting.path, **({"summary": summary.text} if summary.text else {})}
    closed = records.record_event(connection, meeting.id, "close", "closed by the user", now, **changes)
    for session in records.list_sessions(connection, meeting.id):
        run = run_records.find_run(connection, session.run)
        if run is not None and run.status not in ("completed", "cancelled"):
            run_records.complete_run(connection, run.id, summary.text or "the meeting was closed", now)
    return closed


async def clean_up(context: MeetingContext, meeting: Meeting) -> None:
    """Remove the checkout, the branch and the transcript of a closed meeting. The next start repeats failed steps."""

    def remove() -> UncommittedFiles | None:
        context.transcript_path(meeting).unlink(missing_ok=True)
        return context.workspace(meeting).remove(is_merged=not meeting.is_work_left)

    try:
        uncommitted = await asyncio.to_thread(remove)
    except (GuildError, OSError) as error:
        _log.warning("%s: checkout or branch could not be removed: %s", meeting.id, error)
        return
    text, now = f"checkout removed; {uncommitted.text()}" if uncommitted else "checkout removed", context.now()

    def write(connection: Connection) -> None:
        records.update_fields(connection, meeting.id, now, cleaned_up_at=now)
        records.add_note(connection, meeting.id, "clean_up", text, now)

    await context.store.write(write)
