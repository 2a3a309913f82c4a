"""`guild job ls`, `show`, `result`, `cancel` and `rm`: the work that was handed over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.cli import exit_codes
from guildhall.cli.connection import with_hall, with_look
from guildhall.cli.format.jobs import print_job
from guildhall.cli.format.member_jobs import print_listing, print_standing
from guildhall.cli.format.runs import age
from guildhall.cli.parser import positive_int
from guildhall.cli.targets import job_id
from guildhall.core.clock import SystemClock
from guildhall.core.errors import UsageError
from guildhall.core.ids import COMMISSION, MEETING, is_id
from guildhall.members.model import of_member

if TYPE_CHECKING:
    import argparse

    from guildhall.cli.screen import Screen
    from guildhall.core.frame import Frame
    from guildhall.hall.client.interface import HallClient
    from guildhall.jobs.model import JobResult, Page
    from guildhall.members.wire import Result

_SHOWN = 50


def arguments(parser: argparse.ArgumentParser) -> None:
    command = parser.get_default("command")
    if command == "job ls":
        help = "only those whose whole description fits, such as '*report*'"
        parser.add_argument("--filter", metavar="GLOB", help=help)
        of = parser.add_mutually_exclusive_group()
        of.add_argument("--worker", metavar="NAME", help="only those of one worker")
        of.add_argument("--member", metavar="NAME", help="those of a guild member instead (`guild member ls`)")
        parser.add_argument("--limit", metavar="N", type=positive_int, help=f"at most so many; without it {_SHOWN}")
        parser.add_argument("--cursor", metavar="C", help="go on where an earlier listing ended")
        parser.add_argument("--all", action="store_true", help="all of them")
    else:
        parser.add_argument("id", metavar="JOB", help="the id of the job; of a member's: MEMBER/JOB")
    if command in ("job rm", "rm"):
        parser.add_argument("--force", action="store_true", help="also one that has failed")
    parser.add_argument("--json", action="store_true", help="print an object")


def main(args: argparse.Namespace, screen: Screen) -> int:
    if args.command == "job ls":
        return _ls(args, screen)
    verb = args.command.rpartition(" ")[2]
    if args.command == "rm" and is_id(args.id, COMMISSION):
        from guildhall.cli.commands.projects.commission import main as of_commission

        return of_commission(args, screen)
    if args.command == "rm" and is_id(args.id, MEETING):
        from guildhall.cli.commands.projects.meeting import main as of_meeting

        return of_meeting(args, screen)
    if (theirs := of_member(args.id)) is not None:
        return _of_member(verb, *theirs, args, screen)
    id = job_id(args.id)

    async def look(client: HallClient, frame: Frame) -> int:
        if verb == "show":
            shown = await client.jobs.get(id)
            screen.json(shown.as_dict()) if args.json else print_job(shown, screen)
        else:
            result = await client.jobs.result(id)
            if args.json:
                screen.json(result.as_wire())
            else:
                _print_result(result, screen)
        return exit_codes.DONE

    async def change(client: HallClient, frame: Frame) -> int:
        if verb == "cancel":
            job = await client.jobs.cancel(id)
            screen.json({"jobId": id, "status": job.status}) if args.json else screen.result(f"{id} is {job.status}")
        else:
            await client.jobs.delete(id, force=args.force)
            screen.json({"jobId": id, "deleted": True}) if args.json else screen.result(f"{id} is deleted")
        return exit_codes.DONE

    return with_look(look, screen) if verb in ("show", "result") else with_hall(change, screen)


def _print_result(result: JobResult | Result, screen: Screen) -> None:
    screen.result(result.output)
    for path in result.artifacts or ():
        screen.note(path, "dim")


def _of_member(verb: str, member: str, job: str, args: argparse.Namespace, screen: Screen) -> int:
    """The same verbs for a job of a member, which has the last word on them."""
    if verb == "rm" and args.force:
        raise UsageError("--force: a member deletes no job that has failed")

    async def work(client: HallClient, frame: Frame) -> int:
        match verb:
            case "show":
                standing = await client.members.job(member, job, frame)
                if args.json:
                    screen.json(standing.as_wire())
                else:
                    await print_standing(member, standing, client, frame, screen)
            case "result":
                result = await client.members.job_result(member, job, frame)
                screen.json(result.as_wire()) if args.json else _print_result(result, screen)
            case "cancel":
                status = await client.members.cancel_job(member, job, frame)
                screen.json({"jobId": job, "status": status}) if args.json else screen.result(f"{args.id} is {status}")
            case _:
                await client.members.delete_job(member, job, frame)
                screen.json({"jobId": job, "deleted": True}) if args.json else screen.result(f"{args.id} is deleted")
        return exit_codes.DONE

    return with_hall(work, screen)


def _ls_of_member(args: argparse.Namespace, limit: int | None, screen: Screen) -> int:
    async def work(client: HallClient, frame: Frame) -> int:
        listing = await client.members.jobs(args.member, frame, filter=args.filter, limit=limit, cursor=args.cursor)
        screen.json(listing.as_wire()) if args.json else print_listing(args.member, listing, screen)
        return exit_codes.DONE

    return with_hall(work, screen)


def _ls(args: argparse.Namespace, screen: Screen) -> int:
    limit = None if args.all else args.limit or _SHOWN
    if args.member is not None:
        return _ls_of_member(args, limit, screen)

    async def work(client: HallClient, frame: Frame) -> int:
        page = await client.jobs.list(filter=args.filter, limit=limit, cursor=args.cursor, worker=args.worker)
        if args.json:
            more = {"nextCursor": page.next} if page.next else {}
            screen.json({"jobs": [job.as_dict() for job in page.jobs], **more})
        else:
            _print_page(page, screen)
        return exit_codes.DONE

    return with_look(work, screen)


def _print_page(page: Page, screen: Screen) -> None:
    now = SystemClock().now()
    screen.table(
        [
            [
                job.id,
                job.status,
                job.worker,
                screen.one_line(job.description, 50),
                screen.one_line(job.summary or job.error or "", 50),
                age(job.completed_at or job.started_at, now),
            ]
            for job in page.jobs
        ],
    )
    if not page.jobs:
        screen.note('No jobs here. `guild dispatch WORKER "..."` hands something over.')
    if page.next:
        screen.note(f"There are more: guild job ls --cursor {page.next}", "dim")
