"""`guild memory ls`, `show`, `write`, `rm`, `blame` and `revert`: read and change what workers remember.

Parses, calls the hall and prints; the rules for keys and contents are in `memory.model`.
"""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

from guildhall.cli import exit_codes
from guildhall.cli.commands.runs.run import worker_name
from guildhall.cli.connection import with_hall
from guildhall.cli.parser import positive_int
from guildhall.cli.screen import one_line
from guildhall.core.errors import UsageError
from guildhall.memory.model import SCOPES

if TYPE_CHECKING:
    import argparse
    from collections.abc import Awaitable, Callable

    from guildhall.cli.screen import Screen
    from guildhall.core.frame import Frame
    from guildhall.hall.client.interface import HallClient
    from guildhall.memory.model import EntryHistory, Listing, Scope

    Handler = Callable[[argparse.Namespace, Screen, HallClient, Frame], Awaitable[None]]

_MAX_INPUT_BYTES = 1_000_000  # more than an entry can have, so that the hall can say how much too long it is
_MAX_NAME_CHARS = 80
_MAX_PREVIEW_CHARS = 60
_CONTENT_HINT = 'Pass the text, guild memory write KEY "...", or `-` to type it and end with Ctrl-D.'


def arguments(parser: argparse.ArgumentParser) -> None:
    command = parser.get_default("command")
    if command != "memory ls":
        parser.add_argument("key", metavar="KEY", help="name of the entry")
    if command == "memory write":
        parser.add_argument("content", metavar="TEXT", nargs="?", help="the content; `-` reads standard input")
    if command == "memory revert":
        parser.add_argument("--to", metavar="N", type=positive_int, help="number of the change, as `blame` shows it")
    default = "all" if command == "memory ls" else "project, or worker with --worker"
    parser.add_argument("--scope", choices=SCOPES, help=f"default: {default}")
    parser.add_argument("--worker", metavar="NAME", help="the worker whose memory is used")
    parser.add_argument("--json", action="store_true", help="print JSON")


def main(args: argparse.Namespace, screen: Screen) -> int:
    verb = args.command.partition(" ")[2]
    args.worker = None if args.worker is None else worker_name(args.worker)
    if verb == "write":
        args.content = _read_content(args.content)

    async def work(client: HallClient, frame: Frame) -> int:
        await _HANDLERS[verb](args, screen, client, frame)
        return exit_codes.DONE

    return with_hall(work, screen, readonly=verb in ("ls", "show", "blame"))


async def _ls(args: argparse.Namespace, screen: Screen, client: HallClient, frame: Frame) -> None:
    listing = await client.memory.list(frame, scope=args.scope, worker=args.worker)
    screen.json(listing.as_dict()) if args.json else _print_listing(listing, screen)


async def _show(args: argparse.Namespace, screen: Screen, client: HallClient, frame: Frame) -> None:
    entry = await client.memory.get(args.key, frame, scope=_scope(args), worker=args.worker)
    screen.json(entry.as_dict()) if args.json else screen.result(entry.content)


async def _write(args: argparse.Namespace, screen: Screen, client: HallClient, frame: Frame) -> None:
    entry = await client.memory.write(args.key, args.content, frame, scope=_scope(args), worker=args.worker)
    screen.json(entry.as_dict()) if args.json else screen.result(f"Saved {entry.scope}/{entry.key}")


async def _rm(args: argparse.Namespace, screen: Screen, client: HallClient, frame: Frame) -> None:
    entry = await client.memory.remove(args.key, frame, scope=_scope(args), worker=args.worker)
    screen.json(entry.as_dict()) if args.json else screen.result(f"Removed {entry.scope}/{entry.key}")
    worker = ["--worker", args.worker] if args.worker else []
    undo = shlex.join(["guild", "memory", "revert", entry.key, "--scope", entry.scope, *worker])
    screen.note(f"Undo: {undo}")


async def _blame(args: argparse.Namespace, screen: Screen, client: HallClient, frame: Frame) -> None:
    history = await client.memory.history(args.key, frame, scope=_scope(args), worker=args.worker)
    screen.json(history.as_dict()) if args.json else _print_history(history, screen)


async def _revert(args: argparse.Namespace, screen: Screen, client: HallClient, frame: Frame) -> None:
    entry = await client.memory.revert(args.key, frame, scope=_scope(args), worker=args.worker, to=args.to)
    if args.json:
        screen.json(entry.as_dict())
        return
    screen.note(f"Restored {entry.scope}/{entry.key}:", "dim")
    screen.result(entry.content)


_HANDLERS: dict[str, Handler] = {
    "ls": _ls,
    "show": _show,
    "write": _write,
    "rm": _rm,
    "blame": _blame,
    "revert": _revert,
}


def _scope(args: argparse.Namespace) -> Scope:
    return args.scope or ("worker" if args.worker else "project")


def _read_content(argument: str | None) -> str:
    """Return the content from the command line, or from standard input for `-` or no argument."""
    if argument is not None and argument != "-":
        return argument
    if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison] - closed by the caller
        raise UsageError("cannot read the content: standard input is closed", hint=_CONTENT_HINT)
    if argument is None and sys.stdin.isatty():
        raise UsageError("no content given", hint=_CONTENT_HINT)
    try:
        data = sys.stdin.buffer.read(_MAX_INPUT_BYTES + 1)
    except OSError as error:
        raise UsageError(f"cannot read standard input: {error.strerror or error}") from None
    return data.decode(errors="surrogateescape")


def _print_listing(listing: Listing, screen: Screen) -> None:
    if listing.entries:
        rows = [[entry.scope, entry.key, entry.written_at, f"{entry.size:,} bytes"] for entry in listing.entries]
        screen.table([["scope", "key", "written", "size"], *rows])
    else:
        screen.note("No memory entries.")
    for file in listing.skipped:
        name = one_line(file.name, _MAX_NAME_CHARS)
        screen.note(f"Skipped {file.scope}/{name}: {file.reason}", "yellow")


def _print_history(history: EntryHistory, screen: Screen) -> None:
    screen.result(f"{history.scope}/{history.key}: {history.summary}")
    if history.changes:
        rows = [
            [
                str(change.id),
                change.at,
                change.action,
                str(change.author),
                one_line(change.content or "", _MAX_PREVIEW_CHARS),
            ]
            for change in history.changes
        ]
        screen.table([["number", "time", "action", "author", "content"], *rows])
