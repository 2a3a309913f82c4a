"""`guild stop`: end a run, a workflow or one agent of it for good, with all that it has called."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.cli import exit_codes
from guildhall.cli.connection import with_hall
from guildhall.cli.targets import named, run_id
from guildhall.core.errors import GuildError, UsageError
from guildhall.core.ids import ASK, COMMISSION, MEETING, is_id

if TYPE_CHECKING:
    import argparse

    from guildhall.cli.screen import Screen
    from guildhall.core.frame import Frame
    from guildhall.hall.client.interface import HallClient


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="TARGET|RUN", nargs="?", help="agent@workflow:tag, @workflow:tag, or a run's id")
    parser.add_argument("--all", action="store_true", help="everything that works, and every workflow that is not over")
    parser.add_argument("--json", action="store_true", help="print an object with the ids of all runs that were ended")


def main(args: argparse.Namespace, screen: Screen) -> int:
    if (args.run is None) == (not args.all):
        raise UsageError("stop: what is to be stopped?", hint="Name a target or a run, or say --all.")
    if args.run is not None and is_id(args.run, ASK):
        run_id(args.run)

    async def work(client: HallClient, frame: Frame) -> int:
        if args.all:
            return await _everything(client, args.json, screen)
        if is_id(args.run, MEETING):
            return await _meeting(args.run, args.json, client, frame, screen)
        if is_id(args.run, COMMISSION):
            return await _commission(args.run, client, args.json, screen)
        found = await named(args.run, client)
        if found.agent is not None and found.target is not None:
            ended = await client.workflows.stop_agent(found.target)
            told = f"{found.target} is stopped; the others go on. To let it work again: guild start {found.target}"
        else:
            ended = await client.runs.stop(found.run)
            what = str(found.target or found.run)
            more = f", with {len(ended) - 1} that it has called" if len(ended) > 1 and found.target is None else ""
            state = "stopped" if found.target else "cancelled"
            told = f"{what} is {state}{more}; its record stays: guild show {found.run}"
        if args.json:
            screen.json({"run": found.run, "target": found.target and str(found.target), "cancelled": ended})
        else:
            screen.result(told)
        return exit_codes.DONE

    return with_hall(work, screen)


async def _meeting(id: str, as_json: bool, client: HallClient, frame: Frame, screen: Screen) -> int:
    """A meeting is ended by closing it, with what notes there are and without asking a model for more."""
    from guildhall.cli.commands.projects.meeting import tell_change

    meeting = await client.meetings.close(id, frame, summarise=False)
    screen.json(meeting.as_dict()) if as_json else tell_change(meeting, screen)
    return exit_codes.DONE


async def _commission(id: str, client: HallClient, as_json: bool, screen: Screen) -> int:
    """One that has begun and one that has not end the same way."""
    one = await client.commissions.cancel(id)
    if as_json:
        screen.json({"run": one.run, "target": None, "cancelled": [one.run] if one.run else []})
    else:
        screen.result(f"{id} is {one.status}; its record stays: guild show {id}")
    return exit_codes.DONE


async def _everything(client: HallClient, as_json: bool, screen: Screen) -> int:
    """What fails to stop is told, and keeps nothing else from being stopped."""
    living = {one.run: str(one.target) for one in await client.workflows.list(over=False)}
    running = [run for run in await client.runs.list(everything=True) if run.status == "running"]
    meetings = [run.request["meeting"]["id"] for run in running if run.request.get("meeting")]
    living |= {run.id: run.id for run in running if not run.request.get("meeting")} | living
    stopped: list[str] = []
    code = exit_codes.DONE
    for id in meetings:  # only a person who names it closes a meeting
        await client.meetings.interrupt(id)
        screen.note(f"{id}: the answer is cut off; the meeting stays open")
    for run, name in living.items():
        try:
            await client.runs.stop(run)
        except GuildError as error:
            screen.note(f"guild: {error.message}", "red")
            code = exit_codes.FAILED
            continue
        stopped.append(run)
        if not as_json:
            screen.result(f"{name} is stopped")
    if as_json:
        screen.json({"stopped": stopped})
    elif not living and not meetings:
        screen.note("Nothing lives here.")
    return code
