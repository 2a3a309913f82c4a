"""`guild replay`: do a run again on its recorded answers, touching nothing, and show where it differs."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from guildhall.cli import exit_codes
from guildhall.cli.connection import with_hall
from guildhall.cli.targets import run_named

if TYPE_CHECKING:
    import argparse

    from guildhall.cli.screen import Screen
    from guildhall.core.frame import Frame
    from guildhall.hall.client.interface import HallClient


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN|TARGET", help="the id of the run, or of a job; @workflow:tag")
    parser.add_argument("--json", action="store_true", help="print an object")


def main(args: argparse.Namespace, screen: Screen) -> int:
    async def work(client: HallClient, frame: Frame) -> int:
        run = await run_named(args.run, client)
        replayed = await client.runs.replay(run, frame)
        difference = replayed.difference
        if args.json:
            told = asdict(difference) if difference else {"step": None, "text": None}
            screen.json({**asdict(replayed), "step": told["step"], "difference": told["text"], "same": replayed.same})
        elif difference is None:
            screen.result(f"{run}: {replayed.steps} steps, all as on record")
        else:
            screen.result(f"{replayed.run}: differs at step {difference.step}\n{difference.text}")
        if replayed.worker_gone:
            screen.note("Its worker is not there any more: the definition on record was used.", "yellow")
        return exit_codes.DONE if replayed.same else exit_codes.FAILED

    return with_hall(work, screen, readonly=True)
