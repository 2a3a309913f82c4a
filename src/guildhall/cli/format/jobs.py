"""Job output: prints jobs and their open questions, labels runs by their purpose, and waits for jobs of members.

Does not dispatch or cancel jobs (see `cli.commands.jobs`).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

from guildhall.cli import exit_codes
from guildhall.cli.screen import Screen, money, one_line
from guildhall.core.clock import SystemClock
from guildhall.core.errors import UsageError
from guildhall.runs.purpose import CommissionPurpose, JobPurpose, MeetingPurpose

if TYPE_CHECKING:
    from guildhall.activities.contract import Decision
    from guildhall.cli.command import Context
    from guildhall.jobs.model import JobDetails, JobResult
    from guildhall.runs.model import Run

_MAX_LABEL_CHARS = 80
_PLACEHOLDER = re.compile(r"\$\{\{.*?\}\}")
_POLL_S = 0.3
_MAX_BEGINNING_CHARS = 60  # of a question, if they identify it


def id_of(run: Run) -> str:
    """Return the id of the job, commission or meeting that a run works for, or the id of the run."""
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
            return _PLACEHOLDER.sub("…", run.request.input) or run.worker  # a workflow records its kickoff unrendered


def print_decisions(decisions: Sequence[Decision], screen: Screen) -> None:
    """Print the decisions that a worker has recorded."""
    if decisions:
        screen.heading("\ndecisions")
    for one in decisions:
        screen.result(f"{one.question}\n  {one.decision}\n  {one.reasoning}")


def print_job(id: str, details: JobDetails, screen: Screen) -> None:
    """Print a job without its result. `id`: the id of the job, or MEMBER/JOB for a job of a member."""
    job, (member, _, _) = details.job, id.rpartition("/")
    rows = [
        ["job", id],
        ["member" if member else "worker", member or job.worker],
        ["description", screen.exact(job.description)],
        ["status", job.status + (" (needs you)" if details.is_waiting else "")],
        ["started", screen.exact(job.started_at)],
        ["ended", screen.exact(job.completed_at or "")],
        ["error", screen.exact(job.error or "")],
        ["late error", screen.exact(job.late_error or "")],
        ["run", job.run or ""],
        ["directory", screen.exact(details.directory or "")],
        ["cost", money(details.cost_usd)],
        *(["artifact", screen.exact(path)] for path in details.artifacts),
    ]
    screen.facts(rows)
    screen.section("summary", job.summary)
    _print_questions(id, details, screen)
    print_decisions(details.decisions, screen)
    if job.status == "completed":
        screen.note(f"Result: guild wait {id}")
    elif job.status == "failed":
        screen.note(details.hint or f"Continue: guild resume {id}")
        screen.note(f"Delete it: guild rm {id} --force")
    for ask in details.waiting_asks:
        screen.note(f"Waiting for your answer: guild show {ask}")


def _print_questions(id: str, details: JobDetails, screen: Screen) -> None:
    questions = () if details.job.run else details.questions  # questions of a member's job have no ids
    if details.question_log or questions:
        screen.heading("\nquestions")
    for one in details.question_log:
        ask = f"{one.ask}:\n" if one.ask else ""
        screen.result(f"{ask}{screen.quote_block(one.question)}")
        answer = one.answer and f"answer:\n{screen.quote_block(one.answer)}"
        screen.result(answer or f"guild answer {one.ask} ...")
    for question in questions:
        screen.result(screen.quote_block(question))
        if details.job.status != "cancelled":
            screen.note(answer_command(id, question, questions))


def note_open_questions(id: str, details: JobDetails, screen: Screen) -> None:
    """Print the open questions of a job with the commands that answer them."""
    for one in details.question_log:
        if one.answer is None:
            screen.note(screen.quote_block(one.question))
            screen.note(f'Answer: guild answer {one.ask} "..."', "yellow")
    for question in () if details.job.run else details.questions:
        screen.note(screen.quote_block(question))
        screen.note(f"Answer: {answer_command(id, question, details.questions)}", "yellow")


# jobs of members


def answer_command(job: str, question: str, questions: Sequence[str]) -> str:
    """Return the command that answers an open question of a job. With several questions, it names the question."""
    if len(questions) == 1:
        return f'guild answer {job} "..."'
    whole = " ".join(question.split())
    short = "".join(takewhile(str.isprintable, whole))[:_MAX_BEGINNING_CHARS].strip()
    text = short if len(_matching_questions(short, questions)) == 1 else whole
    return f'guild answer {job} "..." --question {shlex.quote(text)}'


def find_question(given: str, questions: Sequence[str]) -> str:
    """Return the question with this text or beginning, or the text itself if no question matches."""
    found = _matching_questions(given, questions)
    if len(found) > 1:
        raise UsageError(
            f"ambiguous --question: {len(found)} questions begin with {given!r}", hint="Pass more of the question."
        )
    return found[0] if found else given


def _matching_questions(given: str, questions: Sequence[str]) -> list[str]:
    if given in questions:
        return [given]
    beginning = " ".join(given.split())
    return [one for one in questions if beginning and " ".join(one.split()).startswith(beginning)]


async def wait_for_member(id: str, ctx: Context) -> int:
    """Wait until a job of a member has ended or needs the user. Print its state and return the exit code."""
    while (details := await ctx.client.jobs.get(id, ctx.frame)).job.status == "running" and not details.is_waiting:
        await SystemClock().sleep(_POLL_S)
    status, screen = details.job.status, ctx.screen
    result = await ctx.client.jobs.result(id, ctx.frame) if status == "completed" else None
    if ctx.as_json:
        screen.json({**details.as_wire(), **(result.as_wire() if result else {}), "member": id.rpartition("/")[0]})
    elif result is not None:
        print_result(result, screen)
    elif not details.is_waiting:
        screen.note(f"guild: {id} {status}: {details.job.error or 'no reason given'}", "red")
    elif not details.questions:
        screen.note(f'Answer: guild answer {id} "..."', "yellow")
    if not ctx.as_json and status != "cancelled":
        note_open_questions(id, details, screen)
    return exit_codes.NEEDS_YOU if details.is_waiting else exit_codes.DONE if result is not None else exit_codes.FAILED


def print_result(result: JobResult, screen: Screen) -> None:
    """Print the output of a job and the paths of its artifacts."""
    screen.result(result.output)
    for path in result.artifacts:
        screen.note(path, "dim")


def label_of(text: str) -> str:
    """Return the first line of a text, shortened, as the default label of a job or commission."""
    lines = [line for line in text.splitlines() if line.strip()]
    return one_line(lines[0].strip(), _MAX_LABEL_CHARS) if lines else ""
