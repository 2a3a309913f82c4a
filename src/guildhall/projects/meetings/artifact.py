"""The artifact of a meeting: renders and writes `.lore/meetings/ID.md`, and rebuilds lost rows from it.

A hall that starts writes missing and outdated artifacts. A status that a user has edited in an artifact is reported.
Does not close a meeting (`service.py`) and does not write the transcript (`sessions.py`).

Invariant: an edit of an artifact does not change its row.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from guildhall.core.errors import GuildError, InvalidFile
from guildhall.core.ids import MEETING, is_id
from guildhall.projects.meetings import records
from guildhall.projects.meetings.context import MeetingContext, Summary
from guildhall.projects.meetings.model import (
    FOLDER,
    LIMITS,
    FollowUp,
    Meeting,
    MeetingDetails,
    artifact_path,
    branch_name,
    topic_line,
)
from guildhall.projects.meetings.states import STATUSES
from guildhall.projects.model import Artifact
from guildhall.projects.workspace import REBUILT

if TYPE_CHECKING:
    from guildhall.activities.contract import Decision
    from guildhall.projects.model import Project

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
        **meeting.limits,
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


def render_notes(details: MeetingDetails, summary: Summary, redact: Callable[[str], str]) -> str:
    """Return the notes of a meeting. Texts are redacted before their lines are joined."""

    def heading(text: str) -> str:
        return f"### {' '.join(redact(text).split())}"

    def render_decision(decision: Decision) -> str:
        return f"{heading(decision.question)}\n\n{redact(decision.decision)}\n\n{redact(decision.reasoning)}".rstrip()

    def render_followup(followup: FollowUp) -> str:
        worker = f" ({followup.worker})" if followup.worker else ""
        return f"{heading(followup.title)}{worker}\n\n{redact(followup.prompt)}".rstrip()

    meeting = details.meeting
    parts = ["## Summary", _summary_text(meeting, summary, redact)]
    parts += ["## Decisions", *map(render_decision, details.decisions)] if details.decisions else []
    parts += ["## Artifacts", "\n".join(f"- {path}" for path in meeting.linked)] if meeting.linked else []
    parts += ["## Follow-ups", *map(render_followup, details.followups)] if details.followups else []
    if meeting.is_work_left:
        parts += ["## Work", f"Not merged. It is on the branch {meeting.branch}."]
    return "\n\n".join(parts) + "\n"


def _summary_text(meeting: Meeting, summary: Summary, redact: Callable[[str], str]) -> str:
    if summary.text:
        return redact(summary.text)
    worker_summary = redact(meeting.summary or "")
    absence = f"No summary: {summary.problem or 'not requested'}."
    return f"{absence} The worker's last summary:\n\n{worker_summary}" if worker_summary else absence


def write_artifact(context: MeetingContext, meeting: Meeting) -> None:
    """Write the artifact. An error is logged, and the next start of a hall repeats the write."""
    try:
        redact = context.redact
        title = f"Meeting with {meeting.worker}, {meeting.status}: {redact(meeting.topic)}"
        body = ""
        if meeting.status == "closed":
            body = render_notes(context.details(meeting.id), Summary(text=meeting.summary), redact)
        text = render_artifact(meeting, body, redact=redact, revision=context.revision(meeting.id))
        context.branches_of(meeting).write_records({meeting.path: text}, title, meeting.worker)
    except GuildError as error:
        _log.warning("%s: the artifact could not be written: %s", meeting.id, error)


def synchronise(context: MeetingContext) -> None:
    """Rebuild lost rows from artifacts, and write missing or outdated artifacts. Errors are logged."""
    for project in context.list_projects():
        try:
            context.rebuild_rows(project, FOLDER, partial(_parse, context, project), records.add)
        except GuildError as error:
            _log.warning("%s: the meetings cannot be read: %s", project.name, error)
    for meeting in context.list_meetings():
        try:
            if not context.has_current_artifact(meeting):
                write_artifact(context, meeting)
        except GuildError as error:
            _log.warning("%s: %s", meeting.id, error)


def _parse(context: MeetingContext, project: Project, id: str, data: bytes) -> Meeting:
    artifact = Artifact.decode(data, artifact_path(id))
    worker: object = artifact.extra.get("worker")
    if not is_id(id, MEETING):
        raise InvalidFile("invalid artifact: its name is not the id of a meeting")
    if artifact.status not in STATUSES or not isinstance(worker, str) or not worker.strip():
        raise InvalidFile("invalid artifact: its status or worker is missing or invalid")
    has_branch = context.branches(project).exists(branch_name(id))
    if artifact.status == "open" and not has_branch:  # a worker can write files, but not create refs
        raise InvalidFile("invalid artifact: the status is open, but the meeting has no branch")
    now = context.now()
    linked: object = artifact.extra.get("linked")
    return Meeting(
        id=id,
        project=project.name,
        worker=worker,
        topic=topic_line(artifact.title),
        status=artifact.status,
        reason=REBUILT,
        by="artifact",
        linked=tuple(map(str, cast("list[Any]", linked))) if isinstance(linked, list) else (),
        **{name: cast("Any", artifact.extra.get(name)) for name in LIMITS},
        branch=branch_name(id) if has_branch else None,
        notes=artifact_path(id) if artifact.status == "closed" else None,
        created_at=now,
        changed_at=now,
    )
