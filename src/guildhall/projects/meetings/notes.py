"""The artifact of a meeting: while it is asked for what it is about, when it is closed what came out of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.projects.artifact import Artifact
from guildhall.projects.meetings.model import leaves_work

if TYPE_CHECKING:
    from collections.abc import Callable

    from guildhall.activities.model import Decided
    from guildhall.projects.meetings.model import FollowUp, Meeting, MeetingShown
    from guildhall.projects.meetings.summary import Summary


def artifact(meeting: Meeting, body: str = "", *, redact: Callable[[str], str], revision: int) -> bytes:
    """A meeting as its artifact says it; `revision`: how many transitions there were."""
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
    made = Artifact(
        title=meeting.topic,
        date=meeting.created_at[:10],
        status=meeting.status,
        tags=("meeting",),
        extra=extra,
        body=body,
    )
    return made.redacted(redact).render().encode()


def notes(shown: MeetingShown, summary: Summary, redact: Callable[[str], str]) -> str:
    """What is written down when a meeting is closed. Secrets are taken out before anything is put in lines."""

    def decision(one: Decided) -> str:
        return f"### {_line(redact(one.question))}\n\n{redact(one.decision)}\n\n{redact(one.reasoning)}".rstrip()

    def followup(one: FollowUp) -> str:
        whom = f" ({one.worker})" if one.worker else ""
        return f"### {_line(redact(one.title))}{whom}\n\n{redact(one.prompt)}".rstrip()

    parts = ["## Summary", _summary(shown.meeting, summary, redact)]
    parts += ["## Decisions", *map(decision, shown.decisions)] if shown.decisions else []
    parts += ["## Artifacts", "\n".join(f"- {path}" for path in shown.meeting.linked)] if shown.meeting.linked else []
    parts += ["## Follow-ups", *map(followup, shown.followups)] if shown.followups else []
    if leaves_work(shown.timeline):
        parts += ["## Work", f"It was not merged, and stays on the branch {shown.meeting.branch}."]
    return "\n\n".join(parts) + "\n"


def _summary(meeting: Meeting, summary: Summary, redact: Callable[[str], str]) -> str:
    if summary.text:
        return redact(summary.text)
    own = redact(meeting.summary or "")
    without = f"There is no summary: {summary.problem or 'none was asked for'}."
    return f"{without} The worker's own, from during the meeting:\n\n{own}" if own else without


def _line(text: str) -> str:
    return " ".join(text.split())
