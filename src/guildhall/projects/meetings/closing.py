"""Closing a meeting: notes, one commit on the integration branch, and nothing left behind.

The order is what makes it safe. That it is being closed is on record first; the work is committed on its branch; the
notes and the work reach the integration branch by one move of one ref; then the row says closed; then the checkout,
the branch and the transcript are put away. Each step finds out by itself that it was done before, so that whoever
comes after a crash makes all of them again.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from guildhall.core.errors import GuildError, MergeConflict
from guildhall.projects.meetings import records
from guildhall.projects.meetings.model import CLOSING, check_transition, leaves_work, notes_of
from guildhall.projects.meetings.notes import artifact, notes
from guildhall.projects.meetings.summary import Summary
from guildhall.projects.meetings.transcript import as_text
from guildhall.projects.records import note
from guildhall.runs import records as run_records

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from guildhall.core.frame import Frame
    from guildhall.projects.aside import Aside
    from guildhall.projects.meetings.ground import Ground
    from guildhall.projects.meetings.model import Meeting
    from guildhall.projects.meetings.register import Register
    from guildhall.projects.meetings.summary import Summaries

_log = logging.getLogger("guildhall.meetings")
PUT_AWAY = "put_away"  # a line of the timeline that has this: nothing is left of it but its notes


class Closing:
    """Closes meetings, and goes on with what a crash has interrupted."""

    def __init__(self, register: Register, ground: Ground, summaries: Summaries) -> None:
        self._register = register
        self._ground = ground
        self._summaries = summaries

    async def close(self, id: str, frame: Frame, *, summarise: bool = True, leave_work: bool = False) -> Meeting:
        """Ends a meeting for good. To be called while nobody else makes or wakes its run.

        `leave_work`: the notes are written, and what was done stays on its branch, for the person to merge or not.
        """
        meeting = self._register.get(id)
        check_transition(meeting, "closed")
        if meeting.run is not None and self._ground.alive(meeting.run):
            await self._ground.runs().park(meeting.run, "user")
        now = self._register.now()
        wanted = {"summarise": summarise, "leave_work": leave_work}
        await self._register.store.write(lambda c: note(c, id, "is being closed", now, **{CLOSING: wanted}))
        summary = await self._summary(meeting, frame) if summarise else Summary()
        try:
            path = await asyncio.to_thread(self._merged, meeting, summary)
        except MergeConflict as error:
            said = f"not closed: {error.message}"
            files = list(error.files)
            await self._register.store.write(lambda c: note(c, id, said, self._register.now(), files=files))
            hint = f"It stays open. Say in it what is to be done about them: guild meet {id}. Then close it again. "
            hint += f"Or leave what was done on its branch, {meeting.branch}: guild meeting close {id} --leave-work"
            raise MergeConflict(
                f"the meeting {id} cannot be closed: {error.message}", files=error.files, hint=hint
            ) from None
        closed = await self._register.store.write(lambda c: self._closed(c, id, path, summary))
        await self.put_away(closed)
        return closed

    async def _summary(self, meeting: Meeting, frame: Frame) -> Summary:
        if meeting.run is None:
            return Summary(problem="nobody came")
        text = as_text(self._register.exchanges(meeting.id), meeting.worker)
        model = self._register.history.get(meeting.run).model
        return await self._summaries.of_text(text, self._ground.frame(meeting, frame), model)

    def _merged(self, meeting: Meeting, summary: Summary) -> str:
        """The work and the notes on the integration branch; the path of the notes."""
        place = self._ground.workplace(meeting)
        shown = self._register.shown(meeting.id)
        path = notes_of(meeting.id)
        done = replace(meeting, status="closed", linked=shown.meeting.linked)
        revision = self._register.revision(meeting.id) + 1  # the transition that follows
        redact = self._ground.redact
        also = {path: artifact(done, notes(shown, summary, redact), redact=redact, revision=revision)}
        message = f"Meeting with {meeting.worker}: {redact(meeting.topic)}"
        begun = place.tip() is not None  # else nobody came
        if begun:
            place.keep(message)
        if begun and not leaves_work(shown.timeline):
            place.land(message, also)
        else:
            place.branches.write(also, message, meeting.worker)
        return path

    def _closed(self, connection: Connection, id: str, path: str, summary: Summary) -> Meeting:
        now = self._register.now()
        columns = {"notes": path, **({"summary": summary.text} if summary.text else {})}
        meeting = records.move(connection, id, "closed", "closed by the person", now, **columns)
        for sitting in self._register.sittings(id):  # also one that has failed: what it was there for is done
            run = run_records.find_run(connection, sitting.run)
            if run is not None and run.status not in ("completed", "cancelled"):
                run_records.conclude(connection, run.id, summary.text or "the meeting was closed", now)
        return meeting

    async def put_away(self, meeting: Meeting) -> None:
        """What a closed meeting needs no more. What cannot be put away stays, and is tried again at the next start."""
        try:
            aside = await asyncio.to_thread(self._put_away, meeting)
        except (GuildError, OSError) as error:
            _log.warning("%s: its checkout or branch stays for now: %s", meeting.id, error)
            return
        now = self._register.now()
        told = f"put away; {aside.told()}" if aside else "put away"
        await self._register.store.write(lambda c: note(c, meeting.id, told, now, **{PUT_AWAY: True}))

    def _put_away(self, meeting: Meeting) -> Aside | None:
        self._register.transcript(meeting).unlink(missing_ok=True)
        landed = not leaves_work(self._register.timeline(meeting.id))
        return self._ground.workplace(meeting).put_away(landed=landed)

    # after a crash

    def interrupted(self) -> list[tuple[Meeting, dict[str, bool]]]:
        """The meetings that were being closed, and how."""
        found: list[tuple[Meeting, dict[str, bool]]] = []
        for meeting in self._register.all(status="open"):
            last = self._register.timeline(meeting.id)[-1]
            if CLOSING in last.data:
                found.append((meeting, {name: bool(value) for name, value in last.data[CLOSING].items()}))
        return found

    def left_behind(self) -> list[Meeting]:
        """The meetings that are closed, and of which something may still lie about."""
        closed = self._register.all(status="closed")
        return [one for one in closed if not any(PUT_AWAY in line.data for line in self._register.timeline(one.id))]
