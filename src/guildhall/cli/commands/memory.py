"""`guild memory ls`, `show`, `write`, `rm`, `blame` and `revert`: what workers remember."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from guildhall.cli import exit_codes, visible
from guildhall.cli.commands.run import worker_name
from guildhall.cli.parser import positive_int
from guildhall.cli.reach import with_hall
from guildhall.core.errors import UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Awaitable, Callable

    from guildhall.cli.screen import Screen
    from guildhall.core.frame import Frame
    from guildhall.hall.client import HallClient
    from guildhall.memory.model import Listing, Scope
    from guildhall.memory.provenance import Blame

    Verb = Callable[[argparse.Namespace, Screen, HallClient, Frame], Awaitable[None]]

_SCOPES = ("global", "project", "worker")
_MOST = 1_000_000  # bytes that are read before an entry is found too long
_HOW = 'Say what to remember, guild memory write KEY "...", or `-` to type it and end with Ctrl-D.'


def arguments(parser: argparse.ArgumentParser) -> None:
    command = parser.get_default("command")
    if command != "memory ls":
        parser.add_argument("key", metavar="KEY", help="the entry's name")
    if command == "memory write":
        parser.add_argument("content", metavar="TEXT", nargs="?", help="what to remember; `-` reads standard input")
    if command == "memory revert":
        parser.add_argument("--to", metavar="N", type=positive_int, help="the content of this number in the record")
    default = "all of them" if command == "memory ls" else "project, or worker where one is named"
    parser.add_argument("--scope", choices=_SCOPES, help=f"whose memory; without it: {default}")
    parser.add_argument("--worker", metavar="NAME", help="the worker whose memory is meant")
    parser.add_argument("--json", action="store_true", help="print an object")


def main(args: argparse.Namespace, screen: Screen) -> int:
    verb = args.command.partition(" ")[2]
    args.worker = None if args.worker is None else worker_name(args.worker)
    if verb == "write":
        args.content = _content(args.content)

    async def work(client: HallClient, frame: Frame) -> int:
        await _VERBS[verb](args, screen, client, frame)
        return exit_codes.DONE

    return with_hall(work, screen, readonly=verb in ("ls", "show", "blame"))


def _scope(args: argparse.Namespace) -> Scope:
    return args.scope or ("worker" if args.worker else "project")


async def _ls(args: argparse.Namespace, screen: Screen, client: HallClient, frame: Frame) -> None:
    listing = await client.memory_ls(frame, scope=args.scope, worker=args.worker)
    screen.json(listing.as_dict()) if args.json else _print_listing(listing, screen)


async def _show(args: argparse.Namespace, screen: Screen, client: HallClient, frame: Frame) -> None:
    entry = await client.memory_show(args.key, frame, scope=_scope(args), worker=args.worker)
    screen.json(entry.as_dict()) if args.json else screen.result(entry.content)


async def _write(args: argparse.Namespace, screen: Screen, client: HallClient, frame: Frame) -> None:
    entry = await client.memory_write(args.key, args.content, frame, scope=_scope(args), worker=args.worker)
    screen.json(entry.as_dict()) if args.json else screen.result(f"{entry.scope}/{entry.key} is written")


async def _rm(args: argparse.Namespace, screen: Screen, client: HallClient, frame: Frame) -> None:
    entry = await client.memory_rm(args.key, frame, scope=_scope(args), worker=args.worker)
    screen.json(entry.as_dict()) if args.json else screen.result(f"{entry.scope}/{entry.key} is removed")
    screen.note(f"It can be brought back: guild memory revert {entry.key}")


async def _blame(args: argparse.Namespace, screen: Screen, client: HallClient, frame: Frame) -> None:
    blame = await client.memory_blame(args.key, frame, scope=_scope(args), worker=args.worker)
    screen.json(blame.as_dict()) if args.json else _print_blame(blame, screen)


async def _revert(args: argparse.Namespace, screen: Screen, client: HallClient, frame: Frame) -> None:
    entry = await client.memory_revert(args.key, frame, scope=_scope(args), worker=args.worker, to=args.to)
    if args.json:
        screen.json(entry.as_dict())
        return
    screen.note(f"{entry.scope}/{entry.key} is again:", "dim")
    screen.result(entry.content)


_VERBS: dict[str, Verb] = {
    "ls": _ls,
    "show": _show,
    "write": _write,
    "rm": _rm,
    "blame": _blame,
    "revert": _revert,
}


def _print_listing(listing: Listing, screen: Screen) -> None:
    if listing.entries:
        rows = [[entry.scope, entry.key, entry.written_at, f"{entry.size:,} bytes"] for entry in listing.entries]
        screen.table([["scope", "key", "written", "size"], *rows])
    else:
        screen.note("Nothing is remembered here.")
    for skipped in listing.skipped:
        screen.note(f"no entry: {skipped.scope}/{visible.one_line(skipped.name, 80)}: {skipped.reason}", "yellow")


def _print_blame(blame: Blame, screen: Screen) -> None:
    screen.result(f"{blame.place.scope}/{blame.key}: {blame.verdict}")
    rows = [
        [str(record.id), record.at, record.action, str(record.writer), visible.one_line(record.content or "", 60)]
        for record in blame.records
    ]
    if rows:
        screen.table([["number", "when", "what", "by", "content"], *rows])


def _content(given: str | None) -> str:
    """What is to be remembered: from the command, or from standard input."""
    if given is not None and given != "-":
        return given
    if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison] - closed by the caller
        raise UsageError("standard input is closed", hint=_HOW)
    if given is None and sys.stdin.isatty():
        raise UsageError("there is nothing to remember", hint=_HOW)
    try:
        data = sys.stdin.buffer.read(_MOST + 1)
    except OSError as error:
        raise UsageError(f"standard input cannot be read: {error.strerror or error}") from None
    return data.decode(errors="surrogateescape")
