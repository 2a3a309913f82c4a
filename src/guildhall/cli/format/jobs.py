"""Printing jobs, and naming runs by what they are for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.cli.screen import money, one_line
from guildhall.runs.purpose import CommissionPurpose, JobPurpose, MeetingPurpose

if TYPE_CHECKING:
    from collections.abc import Sequence

    from guildhall.activities.model import Decided
    from guildhall.cli.screen import Screen
    from guildhall.jobs.model import JobShown
    from guildhall.runs.model import Run

_MAX_LABEL_CHARS = 80


def id_of(run: Run) -> str:
    """Return the id of the job, commission or meeting of a run, or its own id."""
    match run.purpose:
        case JobPurpose(id=id) | MeetingPurpose(id=id):
            return id
        case CommissionPurpose(id=id, is_review=False):
            return id
        case _:
            return run.id


def rename_run(text: str, run: Run) -> str:
    """Replace the id of a run in a text by the id that `id_of` returns."""
    return text.replace(run.id, id_of(run))


def task_of(run: Run) -> str:
    """Return the description, title or input of a run."""
    match run.purpose:
        case JobPurpose(description=text) | CommissionPurpose(title=text):
            return text
        case _:
            return run.request.input or run.worker


def print_decisions(decisions: Sequence[Decided], screen: Screen) -> None:
    """Print the decisions that a worker has recorded."""
    if decisions:
        screen.heading("\ndecisions")
    for one in decisions:
        screen.result(f"{one.question}\n  {one.decision}\n  {one.reasoning}")


def print_job(shown: JobShown, screen: Screen) -> None:
    """Print everything about a job except its result."""
    job = shown.job
    rows = [
        ["job", job.id],
        ["worker", job.worker],
        ["description", screen.exactly(job.description)],
        ["status", job.status + (" (waits for you)" if shown.waiting else "")],
        ["started", job.started_at],
        ["ended", job.completed_at or ""],
        ["error", screen.exactly(job.error or "")],
        ["late error", screen.exactly(job.late_error or "")],
        ["run", job.run or ""],
        ["directory", screen.exactly(shown.directory or "")],
        ["cost", money(shown.cost_usd)],
        *(["artifact", path] for path in shown.artifacts),
    ]
    screen.table([row for row in rows if row[1]])
    if job.summary:
        screen.heading("\nsummary")
        screen.result(job.summary)
    if shown.asked:
        screen.heading("\nquestions")
        wrapped = screen.out.isatty()
        for one in shown.asked:
            screen.result(f"{one.ask}:\n{screen.barred(one.question, wrapped=wrapped)}")
            screen.result(
                f"answer:\n{screen.barred(one.answer, wrapped=wrapped)}"
                if one.answer
                else f"guild answer {one.ask} ..."
            )
    print_decisions(shown.decisions, screen)
    if job.status == "completed":
        screen.note(f"The result: guild job result {job.id}")
    elif job.status == "failed":
        screen.note(shown.hint or f"Go on with it: guild resume {job.id}")
        screen.note(f"Delete it: guild job rm {job.id} --force")
    for ask in shown.waiting:
        screen.note(f"It waits for an answer: guild show {ask}")


def label_of(text: str) -> str:
    """Return the first line of a text, shortened: the label of a job or commission that has no other."""
    lines = [line for line in text.splitlines() if line.strip()]
    return one_line(lines[0].strip(), _MAX_LABEL_CHARS) if lines else ""
