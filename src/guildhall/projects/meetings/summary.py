"""Summaries of a meeting, by a run of the worker `meeting-summariser`, which has no tools and answers in one turn.

A summary is optional: if there is none, the caller continues without.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from guildhall.core.errors import GuildError
from guildhall.projects.meetings.transcript import quote
from guildhall.runs.model import HALL, RunRequest

if TYPE_CHECKING:
    from guildhall.core.frame import Frame
    from guildhall.projects.meetings.context import MeetingContext

WORKER = "meeting-summariser"
_MAX_TRANSCRIPT = 120_000  # characters: the last ones
_LEFT_OUT = "(What was said before this is left out.)\n\n"


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A summary, or the reason why there is none."""

    text: str | None = None
    problem: str | None = None


async def summarise(context: MeetingContext, transcript: str, frame: Frame, model: str | None) -> Summary:
    """Return the summary of a transcript, by the model of the meeting."""
    if not transcript.strip():
        return Summary(problem="nothing was said")
    given = transcript if len(transcript) <= _MAX_TRANSCRIPT else _LEFT_OUT + transcript[-_MAX_TRANSCRIPT:]
    request = RunRequest(
        worker=f"shipped/{WORKER}", input=quote(given), override_model=model, max_turns=1, mode="strict"
    )
    try:
        hall_frame = replace(frame, caller=HALL, interactive=False, worktree=None)
        run = await context.runs().to_its_end(request, hall_frame, lambda run: None)
    except GuildError as error:
        return Summary(problem=error.message)
    if run.status != "completed" or not str(run.output or "").strip():
        reason = (run.error["message"] if run.error else run.reason) or "it said nothing"
        return Summary(problem=f"{run.id} {run.status}: {reason}")
    return Summary(text=str(run.output).strip())
