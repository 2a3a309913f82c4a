"""`guild memory ls`, `show`, `write`, `rm`, `log` and `revert`: read and change the memory of workers.

Does not check keys or contents (see `memory.model`).
"""

from __future__ import annotations

import shlex
from typing import Any

from guildhall.cli.argument_parser import positive_int, read_text, worker_name
from guildhall.cli.command import JSON, Context, Work, argument, command
from guildhall.cli.screen import Screen, one_line
from guildhall.core.text_checks import format_count
from guildhall.memory.model import SCOPES, EntryHistory, Listing

_MAX_NAME_CHARS = 80
_MAX_PREVIEW_CHARS = 60
_CONTENT_HINT = 'Pass the text, guild memory write KEY "...", or `-` to type it and end with Ctrl-D.'

_KEY = argument("key", metavar="KEY", help="name of the entry")
_SCOPE = argument("--scope", choices=SCOPES, help="default: project, or worker with --worker")
_WORKER = argument("--worker", metavar="NAME", type=worker_name, help="the worker whose memory is used")


def _folder(ctx: Context) -> dict[str, Any]:
    """Return the scope and the worker of the memory that the options name."""
    return {"scope": ctx.args.scope or ("worker" if ctx.args.worker else "project"), "worker": ctx.args.worker}


@command(argument("--scope", choices=SCOPES, help="default: all"), _WORKER, JSON)
async def ls(ctx: Context) -> None:
    client = await ctx.connect("read")
    ctx.print(await client.memory.list(ctx.frame, scope=ctx.args.scope, worker=ctx.args.worker), _print_listing)


@command(_KEY, _SCOPE, _WORKER, JSON)
async def show(ctx: Context) -> None:
    client = await ctx.connect("read")
    entry = await client.memory.get(ctx.args.key, ctx.frame, **_folder(ctx))
    ctx.print(entry, entry.content)


@command(
    _KEY,
    argument("content", metavar="TEXT", nargs="?", help="the content; `-` reads standard input"),
    _SCOPE,
    _WORKER,
    JSON,
)
def write(ctx: Context) -> Work:
    return _write(ctx, read_text(ctx.args.content, "content", hint=_CONTENT_HINT))


async def _write(ctx: Context, content: str) -> None:
    client = await ctx.connect()
    entry = await client.memory.write(ctx.args.key, content, ctx.frame, **_folder(ctx))
    ctx.print(entry, f"Saved {entry.scope}/{entry.key}")


@command(_KEY, _SCOPE, _WORKER, JSON)
async def rm(ctx: Context) -> None:
    client = await ctx.connect()
    entry = await client.memory.remove(ctx.args.key, ctx.frame, **_folder(ctx))
    ctx.print(entry, f"Removed {entry.scope}/{entry.key}")
    worker = ["--worker", ctx.args.worker] if ctx.args.worker else []
    undo = shlex.join(["guild", "memory", "revert", entry.key, "--scope", entry.scope, *worker])
    ctx.screen.note(f"Undo: {undo}")


@command(_KEY, _SCOPE, _WORKER, JSON)
async def log(ctx: Context) -> None:
    client = await ctx.connect("read")
    ctx.print(await client.memory.history(ctx.args.key, ctx.frame, **_folder(ctx)), _print_history)


@command(
    _KEY,
    argument("--to", metavar="N", type=positive_int, help="number of the change, as `guild memory log` shows it"),
    _SCOPE,
    _WORKER,
    JSON,
)
async def revert(ctx: Context) -> None:
    client = await ctx.connect()
    entry = await client.memory.revert(ctx.args.key, ctx.frame, **_folder(ctx), to=ctx.args.to)
    if not ctx.as_json:
        ctx.screen.note(f"Restored {entry.scope}/{entry.key}:", "dim")
    ctx.print(entry, entry.content)


def _print_listing(listing: Listing, screen: Screen) -> None:
    if listing.entries:
        rows = [
            [entry.scope, entry.key, entry.written_at, format_count(entry.size, "byte")] for entry in listing.entries
        ]
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
            [str(one.id), one.at, one.action, str(one.author), one_line(one.content or "", _MAX_PREVIEW_CHARS)]
            for one in history.changes
        ]
        screen.table([["number", "time", "action", "author", "content"], *rows])
