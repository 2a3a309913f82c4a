"""The artifact of a meeting against its row: written again where it is behind, and the row where that is missing.

The row is what counts: what a hand has written into the artifact is told, and not obeyed.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, cast

from guildhall.core.errors import GuildError, InvalidFile
from guildhall.core.ids import MEETING, is_id
from guildhall.projects.artifact import Artifact
from guildhall.projects.meetings import records
from guildhall.projects.meetings.model import FOLDER, STATES, Meeting, branch_of, checked_topic, notes_of
from guildhall.projects.meetings.notes import artifact, notes
from guildhall.projects.meetings.summary import Summary
from guildhall.projects.model import INTEGRATION
from guildhall.projects.records import known

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from guildhall.projects.meetings.ground import Ground
    from guildhall.projects.meetings.model import MeetingStatus
    from guildhall.projects.meetings.register import Register
    from guildhall.projects.model import Project

_log = logging.getLogger("guildhall.meetings")


class Projection:
    """Keeps artifacts and rows of meetings together."""

    def __init__(self, register: Register, ground: Ground) -> None:
        self._register = register
        self._ground = ground

    def write(self, meeting: Meeting) -> None:
        """The artifact says how the meeting stands. What it cannot say now it says when the next hall starts."""
        try:
            branches = self._ground.branches(self._ground.project(meeting))
            redact = self._ground.redact
            what = f"Meeting with {meeting.worker}, {meeting.status}: {redact(meeting.topic)}"
            body = self._notes(meeting) if meeting.status == "closed" else ""
            text = artifact(meeting, body, redact=redact, revision=self._register.revision(meeting.id))
            branches.write({notes_of(meeting.id): text}, what, meeting.worker)
        except GuildError as error:
            _log.warning("%s: its artifact could not be written: %s", meeting.id, error)

    def _notes(self, meeting: Meeting) -> str:
        """The notes of a closed meeting, made again from what is on record."""
        return notes(self._register.shown(meeting.id), Summary(text=meeting.summary), self._ground.redact)

    def doubts(self, meeting: Meeting) -> list[str]:
        """What the artifact says that the row does not: somebody has written it by hand."""
        try:
            said = self._read(meeting)
        except GuildError as error:
            return [f"{notes_of(meeting.id)}: {error.message}"]
        if said is None or said.status == meeting.status or self._is_older(meeting, said):
            return []
        by_hand = f"{notes_of(meeting.id)} says {said.status[:40]!r}, written by hand"
        return [f"{by_hand}: the meeting is {meeting.status} all the same"]

    def recover(self) -> None:
        """Rows that are missing are made from artifacts, and artifacts that are missing or behind from rows."""
        for project in self._projects():
            try:
                self._rebuild(project)
            except GuildError as error:
                _log.warning("%s: its meetings cannot be read: %s", project.name, error)
        for meeting in self._register.all():
            try:
                self._write_again(meeting)
            except GuildError as error:
                _log.warning("%s: %s", meeting.id, error)

    def _projects(self) -> list[Project]:
        try:
            return self._ground.projects().sound()
        except GuildError as error:  # config.yaml cannot be read at all
            _log.warning("%s", error)
            return []

    def _write_again(self, meeting: Meeting) -> None:
        said = self._read(meeting)
        if said is None or (said.status != meeting.status and self._is_older(meeting, said)):
            self.write(meeting)

    def _is_older(self, meeting: Meeting, artifact: Artifact) -> bool:
        return artifact.revision < self._register.revision(meeting.id)

    def _rebuild(self, project: Project) -> None:
        branches = self._ground.branches(project)
        if not branches.exists(INTEGRATION):
            return
        on_record = self._register.store.read(known)
        for path in branches.list(FOLDER):
            id = path.removeprefix(f"{FOLDER}/").removesuffix(".md")
            if id in on_record or not is_id(id, MEETING) or path != notes_of(id):
                continue
            try:
                meeting = self._made_of(project, id, branches.read(path) or b"", exists=branches.exists(branch_of(id)))
            except GuildError as error:
                _log.warning("%s of %s is no meeting: %s", path, project.name, error)
                continue
            self._register.store.submit(lambda c, meeting=meeting: _add(c, meeting)).result()

    def _made_of(self, project: Project, id: str, data: bytes, *, exists: bool) -> Meeting:
        said = Artifact.of(data, notes_of(id))
        worker = said.extra.get("worker")
        if said.status not in STATES or not isinstance(worker, str) or not worker.strip():
            raise InvalidFile("it does not say how it stands, or with whom it is")
        if said.status == "open" and not exists:  # a worker writes files, and no refs: nobody has sat in this one
            raise InvalidFile("it says that it is open, and has no branch")
        now = self._register.now()
        status: MeetingStatus = said.status
        linked: object = said.extra.get("linked")
        return Meeting(
            id=id,
            project=project.name,
            worker=worker,
            topic=checked_topic(said.title),
            status=status,
            reason="rebuilt from its artifact: the record of the hall was lost",
            by="artifact",
            linked=tuple(map(str, cast("list[Any]", linked))) if isinstance(linked, list) else (),
            branch=branch_of(id) if exists else None,
            notes=notes_of(id) if status == "closed" else None,
            created_at=now,
            changed_at=now,
        )

    def _read(self, meeting: Meeting) -> Artifact | None:
        """What the artifact says; None: there is none."""
        branches, path = self._ground.branches(self._ground.project(meeting)), notes_of(meeting.id)
        data = branches.read(path) if branches.exists(INTEGRATION) else None
        return None if data is None else Artifact.of(data, path)


def _add(connection: Connection, meeting: Meeting) -> None:
    if records.find(connection, meeting.id) is None:
        records.add(connection, meeting, meeting.reason or "")
