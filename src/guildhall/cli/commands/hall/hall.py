"""`guild hall status`, `stop` and `openapi`: print the status of the hall's process, end it, or print its API.

Stopped runs resume when the next hall starts. Does not start the process (see `hall.client.discovery`).
"""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from guildhall.cli.command import JSON, Context, command
from guildhall.cli.format.runs import age
from guildhall.core.clock import SystemClock
from guildhall.core.errors import GuildError
from guildhall.core.paths import Home
from guildhall.hall.client.discovery import Address, find_hall, find_hall_pid
from guildhall.hall.client.discovery import stop as stop_process
from guildhall.hall.client.transport import BlockingTransport, run_without_event_loop

if TYPE_CHECKING:
    from guildhall.cli.screen import Screen


@command(JSON)
def status(ctx: Context) -> None:
    address = find_hall(Home.locate(dict(os.environ)))
    status = {"running": address is not None, **(run_without_event_loop(_status(address)) if address else {})}
    ctx.print(status, _print_status)


async def _status(address: Address) -> dict[str, Any]:
    """Return the status from the hall, or from its address file if the hall does not answer."""
    from guildhall.hall.client.remote import RemoteHall

    client = RemoteHall(address, BlockingTransport(address))
    try:
        return {**await client.hall.status()}
    except GuildError:
        status = asdict(address)
        del status["token"]
        return {**status, "state": "not answering", "runs": None, "members": None, "clients": None, "idle": None}
    finally:
        await client.close()


def _print_status(status: dict[str, Any], screen: Screen) -> None:
    if not status["running"]:
        screen.result("The hall is not running. Commands start it when they need it.")
        return
    rows = [
        ["hall", f"pid {status['pid']}, {status['state']}"],
        ["at", status["url"]],
        ["version", status["version"]],
        ["started", age(status["since"], SystemClock().now())],
    ]
    if status["runs"] is not None:
        rows += [["runs", str(status["runs"])], ["clients", str(status["clients"])]]
        for member in status.get("members") or ():
            jobs = f", running jobs: {member['jobs']}" if member["jobs"] else ""
            rows.append(["member", f"{member['member']}, {member['state']}{jobs}"])
        idle = status["idle"]
        rows += [["idle exit", "never" if idle is None else f"after {idle:g} s without runs, clients and requests"]]
    screen.table(rows)


@command(JSON)
def stop(ctx: Context) -> None:
    pid = find_hall_pid(Home.locate(dict(os.environ)))
    if pid is not None:
        stop_process(pid)
    text = f"Stopped the hall (pid {pid}). The next command that starts a hall resumes its runs."
    ctx.print({"stopped": pid is not None, "pid": pid}, "The hall is not running." if pid is None else text)


@command()
def openapi(ctx: Context) -> None:
    from guildhall.hall.client.openapi import openapi_document

    ctx.screen.json(openapi_document())
