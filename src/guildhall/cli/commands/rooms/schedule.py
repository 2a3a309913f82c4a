"""`guild schedule`: when an agent, or all of a workflow, wake without being mentioned."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.cli import exit_codes
from guildhall.cli.connection import with_hall
from guildhall.cli.targets import target_of
from guildhall.core.errors import UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from guildhall.cli.screen import Screen
    from guildhall.core.frame import Frame
    from guildhall.hall.client.interface import HallClient
    from guildhall.workflow.instance import Schedule


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="TARGET", help="agent@workflow:tag; @workflow:tag: all without their own")
    parser.add_argument("verb", metavar="set|show|clear", choices=("set", "show", "clear"), help="what to do")
    parser.add_argument("when", metavar="WHEN", nargs="?", help='30s, 5m, 1h, or a cron line: "0 9 * * 1-5"')
    parser.add_argument("--prompt", metavar="P", help="what the agent is told then")
    parser.add_argument("--json", action="store_true", help="print an object")


def main(args: argparse.Namespace, screen: Screen) -> int:
    target = target_of(args.target)
    if args.verb == "set" and args.when is None:
        raise UsageError("schedule: when is it to wake?", hint=f"guild schedule {target} set 5m")
    if args.verb != "set" and (args.when is not None or args.prompt is not None):
        raise UsageError(f"schedule: {args.verb} takes no time and no prompt", hint="They go with `set`.")

    async def work(client: HallClient, frame: Frame) -> int:
        if args.verb == "set":
            _print([await client.workflows.set_schedule(target, args.when, prompt=args.prompt)], args.json, screen)
        elif args.verb == "show":
            _print(await client.workflows.schedules(target), args.json, screen)
        else:
            _cleared(await client.workflows.clear_schedule(target), args.json, screen)
        return exit_codes.DONE

    return with_hall(work, screen, readonly=args.verb == "show")


def _print(schedules: Sequence[Schedule], as_json: bool, screen: Screen) -> None:
    from guildhall.core.clock import moment

    if as_json:
        screen.json({"schedules": [schedule.as_dict() for schedule in schedules]})
    elif not schedules:
        screen.note("Nothing is set.")
    else:
        rows = [
            [
                one.agent or "all",
                str(one.wakeup),
                f"next {moment(one.due_at).astimezone():%Y-%m-%d %H:%M:%S}" if one.due_at else "",
                one.prompt or "",
            ]
            for one in schedules
        ]
        screen.table(rows)


def _cleared(was_set: bool, as_json: bool, screen: Screen) -> None:
    if as_json:
        screen.json({"cleared": was_set})
    else:
        screen.result("Cleared." if was_set else "Nothing was set.")
