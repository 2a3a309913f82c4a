"""The artifact of a meeting: while it is asked for what it is about, when it is closed what came out of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.projects.artifact import Artifact

if TYPE_CHECKING:
    from guildhall.jobs.model import Decided
    from guildhall.projects.meetings.model import FollowUp, Meeting, MeetingShown
    from guildhall.projects.meetings.summary import Summary


def artifact(meeting: Meeting, body: str = "", *, revision: int) -> bytes:
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
    return made.render().encode()


def notes(shown: MeetingShown, summary: Summary) -> str:
    """What is written down when a meeting is closed."""
    parts = ["## Summary", _summary(shown.meeting, summary)]
    parts += ["## Decisions", *map(_decision, shown.decisions)] if shown.decisions else []
    parts += ["## Artifacts", "\n".join(f"- {path}" for path in shown.meeting.linked)] if shown.meeting.linked else []
    parts += ["## Follow-ups", *map(_followup, shown.followups)] if shown.followups else []
    return "\n\n".join(parts) + "\n"


def _summary(meeting: Meeting, summary: Summary) -> str:
    if summary.text:
        return summary.text
    without = f"There is no summary: {summary.problem or 'none was asked for'}."
    return f"{without} The worker's own, from during the meeting:\n\n{meeting.summary}" if meeting.summary else without


def _decision(one: Decided) -> str:
    return f"### {_line(one.question)}\n\n{one.decision}\n\n{one.reasoning}".rstrip()


def _followup(one: FollowUp) -> str:
    whom = f" ({one.worker})" if one.worker else ""
    return f"### {_line(one.title)}{whom}\n\n{one.prompt}".rstrip()


def _line(text: str) -> str:
    return " ".join(text.split())
