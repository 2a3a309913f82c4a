"""`guild doctor`: what is there, what is missing, and what to do about it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from guildhall.cli import exit_codes
from guildhall.cli.connection import with_hall

if TYPE_CHECKING:
    import argparse

    from guildhall.cli.screen import Screen
    from guildhall.core.frame import Frame
    from guildhall.hall.client.interface import HallClient


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print a list of objects")


def main(args: argparse.Namespace, screen: Screen) -> int:
    async def work(client: HallClient, frame: Frame) -> int:
        checks = await client.hall.doctor(frame)
        if args.json:
            screen.json([asdict(check) for check in checks])
        else:
            for check in checks:
                screen.result(f"{'ok     ' if check.ok else 'PROBLEM'}  {check.name}: {check.detail}")
                if check.hint:
                    screen.result(f"         {check.hint}")
        return exit_codes.DONE if all(check.ok for check in checks) else exit_codes.FAILED

    return with_hall(work, screen, readonly=True)
