"""`guild resume`: go on with a run, exactly where it stopped."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guildhall.cli import exit_codes
from guildhall.cli.commands.runs.run import limits_arguments
from guildhall.cli.connection import with_hall
from guildhall.cli.follow import Follower, output_argument
from guildhall.cli.targets import run_named
from guildhall.cli.trust_prompt import once_trusted
from guildhall.core.ids import MEETING, is_id

if TYPE_CHECKING:
    import argparse

    from guildhall.cli.screen import Screen
    from guildhall.core.frame import Frame
    from guildhall.hall.client.interface import HallClient, Trusting


def arguments(parser: argparse.ArgumentParser) -> None:
    help = "of the run, the job, the commission or the meeting; @workflow:tag"
    parser.add_argument("run", metavar="ID|TARGET", help=help)
    limits_arguments(parser)
    output_argument(parser)


def main(args: argparse.Namespace, screen: Screen) -> int:
    more = {"max_turns": args.max_turns, "max_tokens": args.max_tokens, "budget": args.budget}
    if is_id(args.run, MEETING):
        from guildhall.cli.commands.projects.meet import go_back

        return go_back(args.run, screen, **more)

    async def work(client: HallClient, frame: Frame) -> int:
        run = await run_named(args.run, client)
        if meeting := (await client.runs.get(run)).run.request.get("meeting"):
            from guildhall.cli.conversation import Talk

            return await Talk(screen, more=more).once(meeting["id"], client, frame)
        return await go_on(run, client, frame, screen, **more)

    return with_hall(work, screen)


async def go_on(run: str, client: HallClient, frame: Frame, screen: Screen, **more: Any) -> int:
    """Go on with a run and follow it; where code that it needs has changed since it was trusted, ask first."""

    async def look() -> Trusting:
        request = (await client.runs.get(run)).run.request
        then = replace(frame, cwd=Path(request["frame"]["cwd"]), root=Path(request["frame"]["root"]))
        return await client.trust.inspect(then, worker=request["worker"])

    code = await once_trusted(
        lambda: Follower(client, screen).follow(client.runs.resume(run, frame, **more)), look, client, screen
    )
    if code == exit_codes.INTERRUPTED and (why := await _held(run, client)):
        screen.note(f"guild: {why}", "red")
        return exit_codes.NEEDS_YOU
    return code


async def _held(run: str, client: HallClient) -> str | None:
    """Why the commission that a run carries out still waits, if it does."""
    if not (told := (await client.runs.get(run)).run.request.get("commission")):
        return None
    found = (await client.commissions.get(told["id"])).commission
    return found.explanation if found.hold is not None else None
