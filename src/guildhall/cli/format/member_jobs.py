"""Jobs of members, as people name and read them: `MEMBER/JOB`. What is known of them is what the member says."""

from __future__ import annotations

import shlex
from itertools import takewhile
from typing import TYPE_CHECKING

from guildhall.cli import exit_codes
from guildhall.core.clock import SystemClock
from guildhall.core.errors import UsageError
from guildhall.core.ids import JOB, is_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from guildhall.cli.screen import Screen
    from guildhall.core.frame import Frame
    from guildhall.hall.client.interface import HallClient
    from guildhall.members.wire import JobListing, JobStanding

_EVERY = 0.3  # seconds between two looks
_BEGINNING = 60  # characters of a question that are enough to name it


def how_to_answer(job: str, question: str, questions: Sequence[str]) -> str:
    """The command that answers one of a job's open questions; its beginning says which, where there are several."""
    if len(questions) == 1:
        return f'guild answer {job} "..."'
    whole = " ".join(question.split())
    short = "".join(takewhile(str.isprintable, whole))[:_BEGINNING].strip()
    said = short if len(_meant(short, questions)) == 1 else whole
    return f'guild answer {job} "..." --question {shlex.quote(said)}'


def question_meant(given: str, questions: Sequence[str]) -> str:
    """The question that is meant by its text, or by its beginning; what fits none is for the member to refuse."""
    found = _meant(given, questions)
    if len(found) > 1:
        raise UsageError(f"{len(found)} questions begin with {given!r}", hint="Give more of the one that is meant.")
    return found[0] if found else given


def _meant(given: str, questions: Sequence[str]) -> list[str]:
    if given in questions:
        return [given]
    beginning = " ".join(given.split())
    return [one for one in questions if beginning and " ".join(one.split()).startswith(beginning)]


async def until_over(member: str, job: str, client: HallClient, frame: Frame) -> JobStanding:
    """Waits until a job has ended, or does nothing more until a person says something."""
    while (standing := await client.members.job(member, job, frame)).status == "running" and not standing.waiting:
        await SystemClock().sleep(_EVERY)
    return standing


async def print_end(member: str, standing: JobStanding, client: HallClient, frame: Frame, screen: Screen) -> int:
    """What came of a job that has ended; what it waits for, where it has not."""
    if standing.waiting:
        questions = standing.questions or ()
        for question in questions:
            screen.note(screen.barred(question, wrapped=screen.out.isatty()))
            how = how_to_answer(f"{member}/{standing.id}", question, questions)
            screen.note(f"It waits for you: {how}", "yellow")
        if not questions:
            screen.note(f'It waits for you: guild answer {member}/{standing.id} "..."', "yellow")
        return exit_codes.NEEDS_YOU
    if standing.status == "completed":
        screen.result((await client.members.job_result(member, standing.id, frame)).output)
        return exit_codes.DONE
    screen.note(f"guild: {member}/{standing.id} {standing.status}: {standing.error or 'no reason was given'}", "red")
    return exit_codes.FAILED


async def told_end(member: str, standing: JobStanding, client: HallClient, frame: Frame, screen: Screen) -> int:
    """The same as an object."""
    told = standing.as_wire()
    if standing.status == "completed":
        told |= (await client.members.job_result(member, standing.id, frame)).as_wire()
    screen.json({**told, "member": member})
    if standing.waiting:
        return exit_codes.NEEDS_YOU
    return exit_codes.DONE if standing.status == "completed" else exit_codes.FAILED


async def print_standing(member: str, standing: JobStanding, client: HallClient, frame: Frame, screen: Screen) -> None:
    """All about a job but for its result."""
    done = standing.status == "completed"
    artifacts = (await client.members.job_result(member, standing.id, frame)).artifacts if done else None
    folder = (await client.members.get(member, frame)).member.folder / "jobs" / standing.id
    rows = [
        ["job", f"{member}/{standing.id}"],
        ["member", member],
        ["description", screen.exactly(standing.description)],
        ["status", standing.status + (" (waits for you)" if standing.waiting else "")],
        ["started", screen.exactly(standing.started_at)],
        ["ended", screen.exactly(standing.completed_at or "")],
        ["error", screen.exactly(standing.error or "")],
        # where those keep them that are made with Guildhall, with what was asked and answered
        ["folder", str(folder) if is_id(standing.id, JOB) and folder.is_dir() else ""],
        *(["artifact", screen.exactly(path)] for path in artifacts or ()),
    ]
    screen.table([row for row in rows if row[1]])
    if standing.summary:
        screen.heading("\nsummary")
        screen.result(standing.summary)
    if standing.questions:
        screen.heading("\nquestions")
        for question in standing.questions:
            screen.result(screen.barred(question, wrapped=screen.out.isatty()))
            if standing.status == "running":
                screen.note(how_to_answer(f"{member}/{standing.id}", question, standing.questions))
    if standing.decisions:
        screen.heading("\ndecisions")
        for one in standing.decisions:
            screen.result(f"{one.question}\n  {one.decision}\n  {one.reasoning}")
    if done:
        screen.note(f"The result: guild job result {member}/{standing.id}")


def print_listing(member: str, listing: JobListing, screen: Screen) -> None:
    rows = [
        [f"{member}/{job.id}", job.status, screen.one_line(job.description or "", 50), _said(job.summary, screen)]
        for job in listing.jobs
    ]
    screen.table(rows)
    if not rows:
        screen.note(f'The member {member} has no jobs. `guild dispatch {member} "..."` hands something over.')
    if listing.next:
        screen.note(f"There are more: guild job ls --member {member} --cursor {listing.next}", "dim")


def _said(text: str | None, screen: Screen) -> str:
    return screen.one_line(text or "", 50)
