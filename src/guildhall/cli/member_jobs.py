"""Jobs of members, as people name and read them: `MEMBER/JOB`. What is known of them is what the member says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.cli import exit_codes
from guildhall.core.clock import SystemClock

if TYPE_CHECKING:
    from guildhall.cli.screen import Screen
    from guildhall.core.frame import Frame
    from guildhall.hall.client import HallClient
    from guildhall.members.wire import JobListing, JobStanding

_EVERY = 0.3  # seconds between two looks


async def until_over(member: str, job: str, client: HallClient, frame: Frame) -> JobStanding:
    """Waits until a job has ended, or does nothing more until a person says something."""
    while (standing := await client.member_job(member, job, frame)).status == "running" and not standing.waiting:
        await SystemClock().sleep(_EVERY)
    return standing


async def print_end(member: str, standing: JobStanding, client: HallClient, frame: Frame, screen: Screen) -> int:
    """What came of a job that has ended; what it waits for, where it has not."""
    if standing.waiting:
        for question in standing.questions or ():
            screen.note(screen.barred(question, wrapped=screen.out.isatty()))
        screen.note(f'It waits for you: guild answer {member}/{standing.id} "..."', "yellow")
        return exit_codes.NEEDS_YOU
    if standing.status == "completed":
        screen.result((await client.member_job_result(member, standing.id, frame)).output)
        return exit_codes.DONE
    screen.note(f"guild: {member}/{standing.id} {standing.status}: {standing.error or 'no reason was given'}", "red")
    return exit_codes.FAILED


async def told_end(member: str, standing: JobStanding, client: HallClient, frame: Frame, screen: Screen) -> int:
    """The same as an object."""
    told = standing.as_wire()
    if standing.status == "completed":
        told |= (await client.member_job_result(member, standing.id, frame)).as_wire()
    screen.json({**told, "member": member})
    if standing.waiting:
        return exit_codes.NEEDS_YOU
    return exit_codes.DONE if standing.status == "completed" else exit_codes.FAILED


def print_standing(member: str, standing: JobStanding, screen: Screen) -> None:
    rows = [
        ["job", f"{member}/{standing.id}"],
        ["member", member],
        ["description", screen.exactly(standing.description)],
        ["status", standing.status],
        ["started", screen.exactly(standing.started_at)],
        ["ended", screen.exactly(standing.completed_at or "")],
        ["error", screen.exactly(standing.error or "")],
    ]
    screen.table([row for row in rows if row[1]])
    if standing.summary:
        screen.heading("\nsummary")
        screen.result(standing.summary)
    if standing.questions:
        screen.heading("\nquestions")
        for question in standing.questions:
            screen.result(screen.barred(question, wrapped=screen.out.isatty()))
    if standing.decisions:
        screen.heading("\ndecisions")
        for one in standing.decisions:
            screen.result(f"{one.question}\n  {one.decision}\n  {one.reasoning}")
    if standing.status == "completed":
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
