"""The close of a meeting: writes the notes, merges work and notes as one commit, and removes the checkout.

The order is: record the request to close, commit the work on the branch of the meeting, move work and notes to the
integration branch by one update of one ref, set the row to closed, remove checkout, branch and transcript. A merge
conflict leaves the meeting open.
Does not write the summary (`transcript.py`, `summarise`).

Invariant: each step detects that it was done before, so all steps can be repeated after a crash.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from guildhall.core.errors import GuildError, MergeConflict
from guildhall.projects.meetings import records
from guildhall.projects.meetings.artifact import render_artifact, render_notes
from guildhall.projects.meetings.context import MeetingContext, details, exchanges
from guildhall.projects.meetings.model import Meeting, artifact_path
from guildhall.projects.meetings.states import Closing, check_event
from guildhall.projects.meetings.transcript import Summary, render_transcript, summarise
from guildhall.runs.record import records as run_records

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from guildhall.core.frame import Frame
    from guildhall.projects.git.snapshot import Aside

_log = logging.getLogger("guildhall.meetings")


async def close(context: MeetingContext, id: str, frame: Frame, closing: Closing) -> Meeting:
    """Close a meeting for good. The caller holds its lock, so that nobody starts or resumes its run meanwhile.

    Raise MergeConflict, and leave the meeting open, if its work cannot be merged.
    """
    meeting = context.get(id)
    check_event(meeting, "close")
    if meeting.run is not None and context.is_alive(meeting.run):
        await context.runs().pause(meeting.run, "user")
    meeting = await context.store.write(lambda c: _begin(c, id, closing, context.now()))
    summary = await _summary(context, meeting, frame) if closing.summarise else Summary()
    try:
        await asyncio.to_thread(_merge, context, meeting, summary)
    except MergeConflict as error:
        await context.store.write(partial(_record_conflict, id=id, error=error, now=context.now()))
        hint = f"The meeting stays open. Talk about the files in it: guild meet {id}. Then close it again. "
        hint += f"Or leave the work on its branch, {meeting.branch}: guild meeting close {id} --leave-work"
        message = f"meeting {id} cannot be closed: {error.message}"
        raise MergeConflict(message, files=error.files, hint=hint) from None
    closed = await context.store.write(lambda c: _record_close(c, id, summary, context.now()))
    await clean_up(context, closed)
    return closed


def _begin(connection: Connection, id: str, closing: Closing, now: str) -> Meeting:
    records.add_note(connection, id, "begin_close", "the user is closing it", now, **vars(closing))
    return records.change(connection, id, now, closing=closing)


async def _summary(context: MeetingContext, meeting: Meeting, frame: Frame) -> Summary:
    if meeting.run is None:
        return Summary(problem="nobody came")
    transcript = render_transcript(exchanges(context, meeting.id), meeting.worker)
    model = context.history.get(meeting.run).model
    return await summarise(context, transcript, context.project_frame(meeting, frame), model)


def _merge(context: MeetingContext, meeting: Meeting, summary: Summary) -> None:
    """Commit the work and the notes to the integration branch, as a single commit."""
    workplace, redact = context.workplace(meeting), context.redact
    notes = render_notes(details(context, meeting.id), summary, redact)
    revision = context.revision(meeting.id) + 1  # with the event `close`, which follows
    artifact = render_artifact(replace(meeting, status="closed"), notes, redact=redact, revision=revision)
    files = {artifact_path(meeting.id): artifact}
    message = f"Meeting with {meeting.worker}: {redact(meeting.topic)}"
    has_work = workplace.tip() is not None  # else there was no session
    if has_work:
        workplace.keep(message)
    if has_work and not meeting.is_work_left:
        workplace.land(message, files)
    else:
        workplace.branches.write(files, message, meeting.worker)


def _record_conflict(connection: Connection, *, id: str, error: MergeConflict, now: str) -> None:
    records.change(connection, id, now, closing=None)
    records.add_note(connection, id, "conflict", f"not closed: {error.message}", now, files=list(error.files))


def _record_close(connection: Connection, id: str, summary: Summary, now: str) -> Meeting:
    """Apply `close` to the meeting, and complete the runs of its sessions, also those that failed."""
    changes = {"notes": artifact_path(id), **({"summary": summary.text} if summary.text else {})}
    meeting = records.apply(connection, id, "close", "closed by the user", now, **changes)
    for session in records.sessions(connection, id):
        run = run_records.find_run(connection, session.run)
        if run is not None and run.status not in ("completed", "cancelled"):
            run_records.complete_run(connection, run.id, summary.text or "the meeting was closed", now)
    return meeting


async def clean_up(context: MeetingContext, meeting: Meeting) -> None:
    """Remove the checkout, the branch and the transcript of a closed meeting. The next start repeats failed steps."""

    def remove() -> Aside | None:
        context.transcript_path(meeting).unlink(missing_ok=True)
        return context.workplace(meeting).put_away(landed=not meeting.is_work_left)

    try:
        kept = await asyncio.to_thread(remove)
    except (GuildError, OSError) as error:
        _log.warning("%s: checkout or branch could not be removed: %s", meeting.id, error)
        return
    text, now = f"checkout removed; {kept.told()}" if kept else "checkout removed", context.now()

    def write(connection: Connection) -> None:
        records.change(connection, meeting.id, now, cleaned_up_at=now)
        records.add_note(connection, meeting.id, "clean_up", text, now)

    await context.store.write(write)
