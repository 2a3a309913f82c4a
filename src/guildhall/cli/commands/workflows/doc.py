"""`guild doc ls`, `read` and `write`: list, print and change the documents of a workflow.

Does not store documents (see `guildhall.room`).
"""

from __future__ import annotations

from guildhall.cli.argument_parser import parse_target, read_text
from guildhall.cli.command import JSON, Context, Work, argument, command
from guildhall.core.errors import UsageError
from guildhall.core.text_checks import format_count

_TARGET = argument("target", metavar="TARGET", type=parse_target, help="@workflow:tag")
_FILE = argument("file", metavar="FILE", nargs="?", help="the document (default: notes.md)")
_TEXT = argument("--text", metavar="T", help="the text (default: standard input)")


@command(_TARGET, JSON)
async def ls(ctx: Context) -> None:
    client = await ctx.connect("read")
    found = await client.rooms.documents(ctx.args.target)
    data = {"documents": [{"path": one.path, "size": one.size} for one in found]}
    ctx.print_table([[one.path, format_count(one.size, "byte")] for one in found], data, empty="No documents yet.")


@command(_TARGET, _FILE, JSON)
async def read(ctx: Context) -> None:
    client = await ctx.connect("read")
    document = await client.rooms.read_document(ctx.args.target, file=ctx.args.file)
    ctx.print(document, document.content)


@command(
    _TARGET,
    _FILE,
    _TEXT,
    argument("--append", action="store_true", help="add the text to the end of the document"),
    argument("--base", metavar="HASH", help="fail if the document has another hash"),
    JSON,
)
def write(ctx: Context) -> Work:
    if ctx.args.append and ctx.args.base is not None:
        raise UsageError("doc write: --base cannot be used with --append", hint="Omit --base.")
    return _write(ctx, read_text(ctx.args.text, "text", hint='Add --text "...", or pipe the text to the command.'))


async def _write(ctx: Context, text: str) -> None:
    rooms, args = (await ctx.connect()).rooms, ctx.args
    if args.append:
        document = await rooms.append_document(args.target, text, file=args.file)
    else:
        document = await rooms.write_document(args.target, text, file=args.file, base=args.base)
    size = len(document.content.encode())
    data = {"path": document.path, "digest": document.digest, "size": size}
    ctx.print(data, f"{document.path}: {format_count(size, 'byte')}")
