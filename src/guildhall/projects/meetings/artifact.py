"""The artifact of a meeting: renders and writes `.lore/meetings/ID.md`, and rebuilds lost rows from it.

A status that a user has edited in the artifact is reported, not applied. A missing or outdated artifact is written
again when a hall starts.
Does not close a meeting (`service.py`) and does not write the transcript (`sessions.py`).

Invariant: the row is the truth. The artifact is a copy for readers.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from guildhall.core.errors import GuildError, InvalidFile
from guildhall.core.ids import MEETING, is_id
from guildhall.projects.meetings import records
from guildhall.projects.meetings.context import MeetingContext, Summary
from guildhall.projects.meetings.model import (
    FOLDER,
    FollowUp,
    Meeting,
    MeetingDetails,
    artifact_path,
    branch_name,
    topic_line,
)
from guildhall.projects.meetings.states import STATUSES
from guildhall.projects.model import INTEGRATION, Artifact, Project

if TYPE_CHECKING:
    from collections.abc import Callable

    from guildhall.activities.contract import Decision

_log = logging.getLogger("guildhall.meetings")


def render_artifact(meeting: Meeting, body: str = "", *, redact: Callable[[str], str], revision: int) -> bytes:
    """Return the artifact of a meeting. `revision`: the number of its transitions."""
    extra = {
        "meeting": meeting.id,
        "worker": meeting.worker,
        "by": meeting.by,
        "requested": meeting.created_at,
        **({"deferred_to": meeting.deferred_to} if meeting.deferred_to else {}),
        **({"reason": meeting.reason} if meeting.reason and meeting.status == "declined" else {}),
        **({"linked": list(meeting.linked)} if meeting.linked else {}),
        "revision": revision,
    }
    artifact = Artifact(
        title=meeting.topic,
        date=meeting.created_at[:10],
        status=meeting.status,
        tags=("meeting",),
        extra=extra,
        body=body,
    )
    return artifact.redact(redact).render().encode()


def render_notes(shown: MeetingDetails, summary: Summary, redact: Callable[[str], str]) -> str:
    """Return the notes of a meeting. Secrets are removed before texts are put into lines."""

    def decision(one: Decision) -> str:
        return f"### {_one_line(redact(one.question))}\n\n{redact(one.decision)}\n\n{redact(one.reasoning)}".rstrip()

    def followup(one: FollowUp) -> str:
        worker = f" ({one.worker})" if one.worker else ""
        return f"### {_one_line(redact(one.title))}{worker}\n\n{redact(one.prompt)}".rstrip()

    meeting = shown.meeting
    parts = ["## Summary", _summary(meeting, summary, redact)]
    parts += ["## Decisions", *map(decision, shown.decisions)] if shown.decisions else []
    parts += ["## Artifacts", "\n".join(f"- {path}" for path in meeting.linked)] if meeting.linked else []
    parts += ["## Follow-ups", *map(followup, shown.followups)] if shown.followups else []
    if meeting.is_work_left:
        parts += ["## Work", f"Not merged. It is on the branch {meeting.branch}."]
    return "\n\n".join(parts) + "\n"


def _summary(meeting: Meeting, summary: Summary, redact: Callable[[str], str]) -> str:
    if summary.text:
        return redact(summary.text)
    own = redact(meeting.summary or "")
    without = f"No summary: {summary.problem or 'not requested'}."
    return f"{without} The worker's last summary:\n\n{own}" if own else without


def _one_line(text: str) -> str:
    return " ".join(text.split())


def write_artifact(context: MeetingContext, meeting: Meeting) -> None:
    """Write the artifact. Errors are logged; the next start writes it again."""
    try:
        redact = context.redact
        title = f"Meeting with {meeting.worker}, {meeting.status}: {redact(meeting.topic)}"
        body = ""
        if meeting.status == "closed":
            body = render_notes(context.details(meeting.id), Summary(text=meeting.summary), redact)
        text = render_artifact(meeting, body, redact=redact, revision=context.revision(meeting.id))
        context.branches_of(meeting).write({meeting.path: text}, title, meeting.worker)
    except GuildError as error:
        _log.warning("%s: the artifact could not be written: %s", meeting.id, error)


def artifact_warnings(context: MeetingContext, meeting: Meeting) -> list[str]:
    """Return a warning if the artifact cannot be read, or if its status was edited."""
    path = meeting.path
    try:
        artifact = _read(context, meeting)
    except GuildError as error:
        return [f"{path}: {error.message}"]
    if artifact is None or artifact.status == meeting.status or artifact.revision < context.revision(meeting.id):
        return []
    return [f"{path} was edited by hand to {artifact.status[:40]!r}, but the meeting is {meeting.status}"]


def synchronise(context: MeetingContext) -> None:
    """Rebuild lost rows from artifacts, and write missing or outdated artifacts. Errors are logged."""
    for project in context.list_projects():
        try:
            _rebuild_rows(context, project)
        except GuildError as error:
            _log.warning("%s: the meetings cannot be read: %s", project.name, error)
    for meeting in context.all():
        try:
            artifact = _read(context, meeting)
            outdated = artifact is not None and artifact.revision < context.revision(meeting.id)
            if artifact is None or (outdated and artifact.status != meeting.status):
                write_artifact(context, meeting)
        except GuildError as error:
            _log.warning("%s: %s", meeting.id, error)


def _read(context: MeetingContext, meeting: Meeting) -> Artifact | None:
    """Return the artifact of a meeting, or None if it does not exist."""
    branches, path = context.branches_of(meeting), meeting.path
    data = branches.read(path) if branches.exists(INTEGRATION) else None
    return None if data is None else Artifact.decode(data, path)


def _rebuild_rows(context: MeetingContext, project: Project) -> None:
    for id, data in context.unrecorded_artifacts(project, FOLDER):
        if not is_id(id, MEETING):
            continue
        try:
            meeting = _parse(context, project, id, data)
        except GuildError as error:
            _log.warning("%s of %s is not the artifact of a meeting: %s", artifact_path(id), project.name, error)
            continue
        add = partial(records.add, activity=meeting, kind="rebuild", reason=meeting.reason or "")
        context.store.submit(add).result()


def _parse(context: MeetingContext, project: Project, id: str, data: bytes) -> Meeting:
    artifact = Artifact.decode(data, artifact_path(id))
    worker: object = artifact.extra.get("worker")
    if artifact.status not in STATUSES or not isinstance(worker, str) or not worker.strip():
        raise InvalidFile("status or worker is missing or invalid")
    has_branch = context.branches(project).exists(branch_name(id))
    if artifact.status == "open" and not has_branch:  # a worker can write files, but not create refs
        raise InvalidFile("the status is open, but the meeting has no branch")
    now = context.now()
    linked: object = artifact.extra.get("linked")
    return Meeting(
        id=id,
        project=project.name,
        worker=worker,
        topic=topic_line(artifact.title),
        status=artifact.status,
        reason="rebuilt from its artifact: the hall's database was lost",
        by="artifact",
        linked=tuple(map(str, cast("list[Any]", linked))) if isinstance(linked, list) else (),
        branch=branch_name(id) if has_branch else None,
        notes=artifact_path(id) if artifact.status == "closed" else None,
        created_at=now,
        changed_at=now,
    )
