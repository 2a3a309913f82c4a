"""`guild hall status` and `stop`: the process that owns the state of a home."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from guildhall.cli import exit_codes
from guildhall.cli.connection import without_loop
from guildhall.cli.format.runs import age
from guildhall.core.clock import SystemClock
from guildhall.core.errors import GuildError
from guildhall.core.paths import Home
from guildhall.hall.client.discovery import find, process_of, stop

if TYPE_CHECKING:
    import argparse

    from guildhall.cli.screen import Screen
    from guildhall.hall.client.discovery import Address


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print an object")


def main(args: argparse.Namespace, screen: Screen) -> int:
    home = Home.locate(dict(os.environ))
    if args.command == "hall stop":
        return _stop(process_of(home), args.json, screen)
    address = find(home)
    told = {"running": address is not None, **(without_loop(_status(address)) if address else {})}
    if args.json:
        screen.json(told)
    else:
        _print(told, screen)
    return exit_codes.DONE


async def _status(address: Address) -> dict[str, Any]:
    """What it says of itself; of one that does not answer, what its file says."""
    from guildhall.hall.client.remote import RemoteHall
    from guildhall.hall.client.transport import BlockingTransport

    client = RemoteHall(address, BlockingTransport(address))
    try:
        return await client.hall.status()
    except GuildError:
        told = asdict(address)
        del told["token"]
        return {**told, "state": "not answering", "runs": None, "members": None, "clients": None, "idle": None}
    finally:
        await client.close()


def _print(told: dict[str, Any], screen: Screen) -> None:
    if not told["running"]:
        screen.result("No hall is running. A command that needs one starts it.")
        return
    rows = [
        ["hall", f"process {told['pid']}, {told['state']}"],
        ["at", told["url"]],
        ["version", told["version"]],
        ["started", age(told["since"], SystemClock().now())],
    ]
    if told["runs"] is not None:
        rows += [["runs", str(told["runs"])], ["clients", str(told["clients"])]]
        rows += [["member", _member(one)] for one in told.get("members") or ()]
        idle = told["idle"]
        rows += [["leaves", "when it is told to" if idle is None else f"after {idle:g} s without either"]]
    screen.table(rows)


def _member(told: dict[str, Any]) -> str:
    return f"{told['member']}, {told['state']}" + (f", jobs that go on: {told['jobs']}" if told["jobs"] else "")


def _stop(pid: int | None, as_json: bool, screen: Screen) -> int:
    if pid is not None:
        stop(pid)
    if as_json:
        screen.json({"stopped": pid is not None, "pid": pid})
    elif pid is None:
        screen.result("No hall is running.")
    else:
        screen.result(f"The hall (process {pid}) has left. What ran there goes on when the next one starts.")
    return exit_codes.DONE
