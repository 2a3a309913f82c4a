"""`guild wait`: until a run is done or needs you. One that was started is done for now when it is quiet."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING

from guildhall.cli import exit_codes
from guildhall.cli.connection import with_hall
from guildhall.cli.format.commissions import is_hall_running, print_commission, wait_idle, warn_if_stopped
from guildhall.cli.format.member_jobs import print_end, told_end, until_over
from guildhall.cli.format.runs import print_ending, result_of
from guildhall.cli.format.workflows import given_up, how_to_try_again
from guildhall.cli.parser import seconds
from guildhall.cli.targets import named
from guildhall.core.clock import SystemClock
from guildhall.core.errors import TimedOut
from guildhall.core.ids import COMMISSION, is_id
from guildhall.members.model import of_member
from guildhall.runs.model import ASIDE

if TYPE_CHECKING:
    import argparse

    from guildhall.cli.screen import Screen
    from guildhall.cli.targets import Named
    from guildhall.core.frame import Frame
    from guildhall.hall.client.interface import HallClient, Shown
    from guildhall.workflow.instance import WorkflowShown

_EVERY = 0.2  # seconds between two looks at a run that is not alive in the hall that is asked
# What may be the end of the wait; the first event says that from now on none is missed.
_TURNS = frozenset({"run_started", "run_ended", "ask_opened", "workflow"})


def arguments(parser: argparse.ArgumentParser) -> None:
    help = "of a run, a job, a commission or an ask; agent@workflow:tag; @workflow:tag"
    parser.add_argument("id", metavar="ID|TARGET", help=help)
    parser.add_argument("--timeout", metavar="T", type=seconds, help="give up after this time, such as 10m (exit 6)")
    parser.add_argument("--json", action="store_true", help="print an object, as `guild run --output json` does")


def main(args: argparse.Namespace, screen: Screen) -> int:
    if (theirs := of_member(args.id) if "@" not in args.id else None) is not None:
        return _member(*theirs, args, screen)

    if is_id(args.id, COMMISSION):
        return _commission(args, screen)

    async def work(client: HallClient, frame: Frame) -> int:
        found = await named(args.id, client)
        try:
            async with asyncio.timeout(args.timeout):
                code, shown = await until_it_stands(found, client, replace(frame, interactive=False))
        except TimeoutError:
            raise TimedOut(f"{args.id} is still at it", hint=f"See guild log -f {found.run}.") from None
        if args.json:
            screen.json(await result_of(shown, client))
        else:
            print_ending(shown, screen)
            if code == exit_codes.FAILED and shown.run.status == "running":
                _say_who_gave_up(found, await client.workflows.find_by_run(shown.run.id), screen)
        return code

    return with_hall(work, screen, readonly=True)


def _say_who_gave_up(found: Named, workflow: WorkflowShown, screen: Screen) -> None:
    for agent in given_up(workflow):
        if found.agent is None or found.agent.name == agent.name:
            screen.note(f"guild: {agent.target} has given up; why: guild log {workflow.run}", "red")
            screen.note(f"Let it try again: {how_to_try_again(agent)}")


def _member(member: str, job: str, args: argparse.Namespace, screen: Screen) -> int:
    async def work(client: HallClient, frame: Frame) -> int:
        try:
            async with asyncio.timeout(args.timeout):
                standing = await until_over(member, job, client, frame)
        except TimeoutError:
            raise TimedOut(f"{args.id} is still at it", hint=f"See guild job show {args.id}.") from None
        return await (told_end if args.json else print_end)(member, standing, client, frame, screen)

    return with_hall(work, screen)


def _commission(args: argparse.Namespace, screen: Screen) -> int:
    async def work(client: HallClient, frame: Frame) -> int:
        try:
            async with asyncio.timeout(args.timeout):
                code, shown = await wait_idle(args.id, client, hall=is_hall_running())
        except TimeoutError:
            raise TimedOut(f"{args.id} is still at it", hint=f"See guild show {args.id}.") from None
        screen.json(shown.as_dict()) if args.json else print_commission(shown, screen)
        await warn_if_stopped(shown, client, screen)
        return code

    return with_hall(work, screen, readonly=True)


async def until_it_stands(found: Named, client: HallClient, frame: Frame) -> tuple[int, Shown]:
    """Waits; the exit code, and how the run stands."""
    while True:
        shown = await client.runs.get(found.run)
        if (code := await _standing(found, shown, client)) is not None:
            return code, shown
        async with aclosing(client.runs.follow(shown.run.root, frame)) as events:
            async for event in events:
                if event.type not in _TURNS:
                    continue
                shown = await client.runs.get(found.run)
                if (code := await _standing(found, shown, client)) is not None:
                    return code, shown
        await SystemClock().sleep(_EVERY)


async def _standing(found: Named, shown: Shown, client: HallClient) -> int | None:
    """The exit code, once there is nothing more to wait for."""
    if any(ask.status == "open" and ask.kind not in ASIDE for ask in shown.asks):  # it goes on without those answers
        return exit_codes.NEEDS_YOU
    if shown.run.status != "running":
        lost = shown.run.status in ("lost", "parked")
        return (
            exit_codes.NEEDS_YOU if lost else exit_codes.of_run(shown.run.status, (shown.run.error or {}).get("code"))
        )
    if not shown.run.request.get("workflow"):
        return None
    workflow = await client.workflows.find_by_run(shown.run.id)
    if found.agent is not None:
        agent = next(one for one in workflow.agents if one.name == found.agent.name)
        ends = {"failed": exit_codes.FAILED, "waiting": exit_codes.NEEDS_YOU, "stopped": exit_codes.DONE}
        return exit_codes.DONE if agent.status == "idle" and not agent.unread else ends.get(agent.status)
    if workflow.status != "quiet":
        return None
    return exit_codes.FAILED if any(one.status == "failed" for one in workflow.agents) else exit_codes.DONE
