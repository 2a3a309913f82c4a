"""`guild meeting ls`, `show`, `accept`, `decline`, `defer`, `close` and `rm`: the conversations with workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.cli import exit_codes
from guildhall.cli.connection import with_hall, with_look
from guildhall.cli.format.meetings import print_meeting
from guildhall.cli.format.runs import age
from guildhall.cli.targets import meeting_id
from guildhall.core.clock import SystemClock

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from guildhall.cli.screen import Screen
    from guildhall.core.frame import Frame
    from guildhall.hall.client.interface import HallClient
    from guildhall.projects.meetings.model import Meeting

_STATES = ("requested", "open", "closed", "declined")


def arguments(parser: argparse.ArgumentParser) -> None:
    verb = parser.get_default("command").rpartition(" ")[2]
    if verb == "ls":
        parser.add_argument("--project", metavar="NAME", help="only those of one project")
        parser.add_argument("--status", choices=_STATES, help="only those that stand so")
        parser.add_argument("--all", action="store_true", help="also those that are over")
    else:
        parser.add_argument("id", metavar="MEETING", help="the id of the meeting")
    if verb == "decline":
        parser.add_argument("--reason", metavar="TEXT", help="why not")
    if verb == "defer":
        parser.add_argument("date", metavar="DATE", help="when to be asked again: 2027-01-31, or 2027-01-31T14:00")
    if verb == "close":
        parser.add_argument("--no-summary", action="store_true", help="write the notes without asking a model for one")
        parser.add_argument(
            "--leave-work", action="store_true", help="write the notes, leave what was done on its branch"
        )
    parser.add_argument("--json", action="store_true", help="print an object")


def main(args: argparse.Namespace, screen: Screen) -> int:
    verb = args.command.rpartition(" ")[2]
    if verb == "ls":
        return _ls(args, screen)
    id = meeting_id(args.id)

    async def look(client: HallClient, frame: Frame) -> int:
        shown = await client.meetings.get(id)
        screen.json(shown.as_dict()) if args.json else print_meeting(shown, screen)
        return exit_codes.DONE

    async def change(client: HallClient, frame: Frame) -> int:
        if verb == "rm":
            await client.meetings.delete(id)
            screen.json({"meeting": id, "deleted": True}) if args.json else screen.result(f"{id} is off the record")
            return exit_codes.DONE
        meeting = await _changed(verb, id, args, client, frame)
        screen.json(meeting.as_dict()) if args.json else tell_change(meeting, screen)
        return exit_codes.DONE

    return with_look(look, screen) if verb == "show" else with_hall(change, screen)


async def _changed(verb: str, id: str, args: argparse.Namespace, client: HallClient, frame: Frame) -> Meeting:
    match verb:
        case "accept":
            return await client.meetings.accept(id)
        case "decline":
            return await client.meetings.decline(id, reason=args.reason)
        case "defer":
            return await client.meetings.defer(id, args.date)
        case _:
            return await client.meetings.close(id, frame, summarise=not args.no_summary, leave_work=args.leave_work)


def tell_change(meeting: Meeting, screen: Screen) -> None:
    """How a meeting stands now, and what to do next."""
    match meeting.status:
        case "open":
            screen.result(f"{meeting.id} is open")
            screen.note(f"Go there: guild meet {meeting.id}")
        case "closed":
            screen.result(f"{meeting.id} is closed; its notes are {meeting.notes} on claude/main of {meeting.project}")
            screen.note(f"What came out: guild meeting show {meeting.id}")
        case "requested":
            screen.result(f"{meeting.id} is put off until {meeting.deferred_to}")
        case _:
            screen.result(f"{meeting.id} is declined")


def _ls(args: argparse.Namespace, screen: Screen) -> int:
    async def work(client: HallClient, frame: Frame) -> int:
        found = await client.meetings.list(project=args.project, status=args.status)
        if not args.all and args.status is None:
            found = [one for one in found if one.status in ("requested", "open")]
        if args.json:
            screen.json({"meetings": [one.as_dict() for one in found]})
        else:
            _print(found, screen)
        return exit_codes.DONE

    return with_look(work, screen)


def _print(meetings: Sequence[Meeting], screen: Screen) -> None:
    now = SystemClock().now()
    screen.table(
        [
            [
                one.id,
                one.status + (f" until {one.deferred_to[:10]}" if one.deferred_to else ""),
                one.project,
                one.worker,
                screen.one_line(one.topic, 50),
                age(one.changed_at, now),
            ]
            for one in meetings
        ]
    )
    if not meetings:
        screen.note("No meetings here. `guild meet WORKER` opens one; those that are over: guild meeting ls --all")
