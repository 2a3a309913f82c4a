"""`guild serve`: a worker at a port of this machine, as a member is, until it is interrupted."""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
from typing import TYPE_CHECKING

from guildhall.cli import exit_codes
from guildhall.cli.connection import with_hall
from guildhall.core.errors import UsageError
from guildhall.members.model import SECRET_VARIABLE

if TYPE_CHECKING:
    from guildhall.cli.screen import Screen
    from guildhall.core.frame import Frame
    from guildhall.hall.client.interface import HallClient

_SHORTEST = 16  # characters of a secret
_LAST_PORT = 65_535
_FAREWELL = 2.0  # seconds that clients get to read their answers


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("worker", metavar="WORKER", help="name or file of the worker")
    parser.add_argument("--port", metavar="N", type=_port, default=0, help="where to serve; not given: any free port")
    parser.add_argument("--json", action="store_true", help="print an object with url and secret")


def main(args: argparse.Namespace, screen: Screen) -> int:
    secret = os.environ.get(SECRET_VARIABLE) or secrets.token_urlsafe(32)
    if len(secret) < _SHORTEST:
        raise UsageError(f"{SECRET_VARIABLE} has fewer than {_SHORTEST} characters", hint="Unset it: one is made up.")

    async def work(client: HallClient, frame: Frame) -> int:
        from guildhall import __version__
        from guildhall.hall.http import Listener
        from guildhall.hall.operations import Operations
        from guildhall.members.endpoint import PATH, Endpoint, Offer

        worker = await client.workers.get(args.worker, frame)
        operations = Operations(client, args.worker, lambda: frame, name=worker.name)
        listener = Listener(port=args.port)
        offer = Offer(name=worker.name, version=__version__, worker=operations)
        await listener.listen(Endpoint.of_one(offer, secret))
        url = f"http://127.0.0.1:{listener.port}{PATH}"
        if args.json:
            screen.json({"worker": worker.name, "url": url, "secret": secret})
        else:
            screen.result(f"{worker.name} serves at {url}")
            screen.result(f"Authorization: Bearer {secret}")
            screen.note("Ctrl-C ends it; jobs go on.", "dim")
        try:
            await asyncio.Event().wait()
        finally:
            await listener.close(_FAREWELL)
        return exit_codes.DONE

    return with_hall(work, screen)


def _port(text: str) -> int:
    """A port of this machine."""
    if text.isascii() and text.isdigit() and (number := int(text[:12])) <= _LAST_PORT:
        return number
    raise argparse.ArgumentTypeError(f"{text!r} is not a port: a number from 1 to 65535, or 0 for any that is free")
