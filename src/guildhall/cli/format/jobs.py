"""Job output: prints jobs and their open questions, labels runs by their purpose, and waits for jobs of members.

Does not dispatch or cancel jobs (see `cli.commands.jobs`).
"""

from __future__ import annotations

import shlex
from itertools import takewhile
from typing import TYPE_CHECKING

from guildhall.cli import exit_codes
from guildhall.cli.screen import Screen, money, one_line
from guildhall.core.clock import SystemClock
from guildhall.core.errors import UsageError
from guildhall.runs.purpose import CommissionPurpose, JobPurpose, MeetingPurpose

if TYPE_CHECKING:
    from collections.abc import Sequence

    from guildhall.activities.contract import Decision
    from guildhall.cli.command import Context
    from guildhall.jobs.model import JobDetails, JobResult
    from guildhall.runs.model import Run

_MAX_LABEL_CHARS = 80
_POLL_S = 0.3
_MAX_BEGINNING_CHARS = 60  # characters of a question that are enough to name it


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


def print_decisions(decisions: Sequence[Decision], screen: Screen) -> None:
    """Print the decisions that a worker has recorded."""
    if decisions:
        screen.heading("\ndecisions")
    for one in decisions:
        screen.result(f"{one.question}\n  {one.decision}\n  {one.reasoning}")


def print_job(id: str, shown: JobDetails, screen: Screen) -> None:
    """Print a job without its result. `id`: as the user names it, MEMBER/JOB for a member's."""
    job, (member, _, _) = shown.job, id.rpartition("/")
    rows = [
        ["job", id],
        ["member" if member else "worker", member or job.worker],
        ["description", screen.exact(job.description)],
        ["status", job.status + (" (needs you)" if shown.is_waiting else "")],
        ["started", screen.exact(job.started_at)],
        ["ended", screen.exact(job.completed_at or "")],
        ["error", screen.exact(job.error or "")],
        ["late error", screen.exact(job.late_error or "")],
        ["run", job.run or ""],
        ["directory", screen.exact(shown.directory or "")],
        ["cost", money(shown.cost_usd)],
        *(["artifact", screen.exact(path)] for path in shown.artifacts),
    ]
    screen.facts(rows)
    screen.section("summary", job.summary)
    _print_questions(id, shown, screen)
    print_decisions(shown.decisions, screen)
    if job.status == "completed":
        screen.note(f"Result: guild wait {id}")
    elif job.status == "failed" and not member:
        screen.note(shown.hint or f"Continue: guild resume {id}")
        screen.note(f"Delete it: guild rm {id} --force")
    for ask in shown.waiting_asks:
        screen.note(f"Waiting for your answer: guild show {ask}")


def _print_questions(id: str, shown: JobDetails, screen: Screen) -> None:
    questions = () if shown.job.run else shown.questions  # a member's have no ids
    if shown.question_log or questions:
        screen.heading("\nquestions")
    for one in shown.question_log:
        screen.result(f"{one.ask}:\n{screen.quote_block(one.question)}")
        answer = one.answer and f"answer:\n{screen.quote_block(one.answer)}"
        screen.result(answer or f"guild answer {one.ask} ...")
    for question in questions:
        screen.result(screen.quote_block(question))
        if shown.job.status == "running":
            screen.note(how_to_answer(id, question, questions))


# Jobs of members: the hall knows about them only what the member says.


def how_to_answer(job: str, question: str, questions: Sequence[str]) -> str:
    """Return the command that answers one of a job's open questions. It names the question if there are several."""
    if len(questions) == 1:
        return f'guild answer {job} "..."'
    whole = " ".join(question.split())
    short = "".join(takewhile(str.isprintable, whole))[:_MAX_BEGINNING_CHARS].strip()
    said = short if len(_matching_questions(short, questions)) == 1 else whole
    return f'guild answer {job} "..." --question {shlex.quote(said)}'


def find_question(given: str, questions: Sequence[str]) -> str:
    """Return the question with this text or beginning. The member refuses a text that fits none."""
    found = _matching_questions(given, questions)
    if len(found) > 1:
        raise UsageError(f"--question: {len(found)} questions begin with {given!r}", hint="Pass more of its text.")
    return found[0] if found else given


def _matching_questions(given: str, questions: Sequence[str]) -> list[str]:
    if given in questions:
        return [given]
    beginning = " ".join(given.split())
    return [one for one in questions if beginning and " ".join(one.split()).startswith(beginning)]


async def wait_for_member(id: str, ctx: Context) -> int:
    """Wait until a job of a member has ended or needs the user. Print its end and return the exit code."""
    while (shown := await ctx.client.jobs.get(id, ctx.frame)).job.status == "running" and not shown.is_waiting:
        await SystemClock().sleep(_POLL_S)
    status, screen = shown.job.status, ctx.screen
    result = await ctx.client.jobs.result(id, ctx.frame) if status == "completed" else None
    if ctx.as_json:
        screen.json({**shown.as_wire(), **(result.as_wire() if result else {}), "member": id.rpartition("/")[0]})
    elif shown.is_waiting:
        for question in shown.questions:
            screen.note(screen.quote_block(question))
            screen.note(f"Answer: {how_to_answer(id, question, shown.questions)}", "yellow")
        if not shown.questions:
            screen.note(f'Answer: guild answer {id} "..."', "yellow")
    elif result is not None:
        print_result(result, screen)
    else:
        screen.note(f"guild: {id} {status}: {shown.job.error or 'no reason given'}", "red")
    return exit_codes.NEEDS_YOU if shown.is_waiting else exit_codes.DONE if result is not None else exit_codes.FAILED


def print_result(result: JobResult, screen: Screen) -> None:
    """Print the output of a job and the paths of its artifacts."""
    screen.result(result.output)
    for path in result.artifacts:
        screen.note(path, "dim")


def label_of(text: str) -> str:
    """Return the first line of a text, shortened: the label of a job or commission that has no other."""
    lines = [line for line in text.splitlines() if line.strip()]
    return one_line(lines[0].strip(), _MAX_LABEL_CHARS) if lines else ""
