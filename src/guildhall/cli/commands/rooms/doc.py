"""`guild doc ls`, `read`, `write` and `append`: list, print and change the documents of a workflow.

Does not store documents (see `guildhall.room`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.cli.arguments import parse_target, read_text
from guildhall.cli.command import JSON, Context, Work, argument, command

if TYPE_CHECKING:
    from guildhall.hall.client.model import Document

_TARGET = argument("target", metavar="TARGET", type=parse_target, help="@workflow:tag")
_FILE = argument("file", metavar="FILE", nargs="?", help="which document; without it: notes.md")
_TEXT = argument("--text", metavar="T", help="the text; without it standard input is read")


@command(_TARGET, JSON)
async def ls(ctx: Context) -> None:
    client = await ctx.connect("read")
    found = await client.rooms.documents(ctx.args.target)
    data = {"documents": [{"path": one.path, "size": one.size} for one in found]}
    ctx.print_table([[one.path, f"{one.size:,} bytes"] for one in found], data, empty="No documents yet.")


@command(_TARGET, _FILE, JSON)
async def read(ctx: Context) -> None:
    client = await ctx.connect("read")
    document = await client.rooms.read_document(ctx.args.target, file=ctx.args.file)
    ctx.print(document, document.content)


@command(
    _TARGET,
    _FILE,
    _TEXT,
    argument("--base", metavar="HASH", help="only if the document is still the one with this hash"),
    JSON,
)
def write(ctx: Context) -> Work:
    return _write(ctx, read_text(ctx.args.text, "text"))


async def _write(ctx: Context, text: str) -> None:
    rooms, args = (await ctx.connect()).rooms, ctx.args
    _print_written(ctx, await rooms.write_document(args.target, text, file=args.file, base=args.base))


@command(_TARGET, _FILE, _TEXT, JSON)
def append(ctx: Context) -> Work:
    return _append(ctx, read_text(ctx.args.text, "text"))


async def _append(ctx: Context, text: str) -> None:
    client = await ctx.connect()
    _print_written(ctx, await client.rooms.append_document(ctx.args.target, text, file=ctx.args.file))


def _print_written(ctx: Context, document: Document) -> None:
    size = len(document.content.encode())
    data = {"path": document.path, "digest": document.digest, "size": size}
    ctx.print(data, f"{document.path}: {size:,} bytes")
