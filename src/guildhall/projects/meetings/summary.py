"""What was said in a meeting, in short: by a run of its own, of a worker that comes with Guildhall and has no tools.

It is asked once, in one turn. What it says is a help and never a condition: whoever needs it goes on without.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from guildhall.core.errors import GuildError
from guildhall.projects.meetings.transcript import barred
from guildhall.runs.model import HALL, RunRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from guildhall.core.frame import Frame
    from guildhall.runs.lifecycle import Runs

WORKER = "meeting-summariser"
_MOST = 120_000  # characters of a transcript that it is given: the last ones
_LEFT_OUT = "(What was said before this is left out.)\n\n"


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What came of it: the text, or why there is none."""

    text: str | None = None
    problem: str | None = None


class Summaries:
    """Asks for summaries."""

    def __init__(self, runs: Callable[[], Runs]) -> None:
        self._runs = runs

    async def of_text(self, transcript: str, frame: Frame, model: str | None) -> Summary:
        """The summary of a transcript, by the model that the meeting is held with."""
        if not transcript.strip():
            return Summary(problem="nothing was said")
        given = transcript if len(transcript) <= _MOST else _LEFT_OUT + transcript[-_MOST:]
        request = RunRequest(
            worker=f"shipped/{WORKER}", input=barred(given), override_model=model, max_turns=1, mode="strict"
        )
        try:
            of_hall = replace(frame, caller=HALL, interactive=False, worktree=None)
            run = await self._runs().to_its_end(request, of_hall, lambda run: None)
        except GuildError as error:
            return Summary(problem=error.message)
        if run.status != "completed" or not str(run.output or "").strip():
            said = (run.error["message"] if run.error else run.reason) or "it said nothing"
            return Summary(problem=f"{run.id} {run.status}: {said}")
        return Summary(text=str(run.output).strip())
