"""`guild trust`: what of a folder would be executed, and the person's word that it may."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from guildhall.cli import exit_codes
from guildhall.cli.connection import with_hall
from guildhall.cli.trust_prompt import asked, counted, shown, told
from guildhall.core.errors import UsageError

if TYPE_CHECKING:
    import argparse

    from guildhall.cli.screen import Screen
    from guildhall.core.frame import Frame
    from guildhall.hall.client.interface import HallClient, Trusting


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "at", metavar="DIR|FILE", nargs="?", help="a project, or the file of a worker, workflow or test; none: here"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--yes", action="store_true", help="trust it without asking")
    what.add_argument("--forget", action="store_true", help="take back the trust in all that lies there")
    parser.add_argument("--json", action="store_true", help="print an object; nothing is asked")


def main(args: argparse.Namespace, screen: Screen) -> int:
    at = None if args.at is None else _path(args.at)

    async def work(client: HallClient, frame: Frame) -> int:
        if args.forget:
            return await _forget(frame.root if at is None else frame.cwd / at, args.json, client, screen)
        looking = await client.trust.inspect(frame, at=at)
        if args.json:
            if args.yes:
                await client.trust.grant(looking.open)
                looking = await client.trust.inspect(frame, at=at)
            screen.json(looking.as_dict())
            return exit_codes.DONE
        again = "guild trust --yes" if args.at is None else f"guild trust {shlex.quote(args.at)} --yes"
        return await _decide(looking, args.yes, again, client, screen)

    changing = args.yes or args.forget or (screen.interactive and not args.json)
    return with_hall(work, screen, readonly=not changing)


async def _decide(looking: Trusting, yes: bool, again: str, client: HallClient, screen: Screen) -> int:
    for error in looking.problems:
        screen.note(f"guild: {shown(str(error.where))}: {shown(error.message)}", "red")
    if not looking.code:
        screen.result(f"Nothing in {shown(str(looking.folder))} would be executed: there is nothing to trust.")
        return exit_codes.DONE
    screen.result(told(looking))
    if not looking.open:
        screen.note("All of it is trusted as it is.")
        return exit_codes.DONE
    if yes:
        await client.trust.grant(looking.open)
    elif not screen.interactive or not await asked(looking, client, screen):
        screen.note(f"Nothing was trusted. To trust {counted(looking)} as it is: {shown(again)}", "yellow")
        return exit_codes.NEEDS_YOU
    screen.note(f"Trusted: {counted(looking)}, as it is now. A change asks again.")
    return exit_codes.DONE


async def _forget(folder: Path, as_json: bool, client: HallClient, screen: Screen) -> int:
    forgotten = await client.trust.revoke(folder)
    if as_json:
        screen.json({"folder": str(folder), "forgotten": [str(pin.path) for pin in forgotten]})
        return exit_codes.DONE
    for pin in forgotten:
        screen.result(shown(str(pin.path)))
    screen.note("No longer trusted." if forgotten else f"Nothing below {shown(str(folder))} was trusted.")
    return exit_codes.DONE


def _path(text: str) -> Path:
    if not text or "\0" in text or len(text) > 4096:
        raise UsageError("that cannot be a folder", hint="Give a folder, the file of a worker, or nothing at all.")
    return Path(text)
