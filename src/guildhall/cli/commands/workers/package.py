"""`guild package ls`, `show`, `new`, `add` and `rm`: manage packages of workers and toolboxes.

`add` prints the content of a folder before it asks to copy it. Does not read packages (see `workers.package`).
"""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

from guildhall.cli import exit_codes
from guildhall.cli.command import JSON, Context, argument, command, exclusive
from guildhall.cli.prompt import ask_yes_no
from guildhall.core.errors import Conflict, Refused
from guildhall.core.text_checks import format_count

if TYPE_CHECKING:
    from guildhall.cli.screen import Screen
    from guildhall.workers.model import PackageDetails

_MAX_POSTURE_CHARS = 2_000  # that are printed

_NAME = argument("name", metavar="NAME", help="the package")


@command(JSON)
async def ls(ctx: Context) -> None:
    client = await ctx.connect("read")
    packages = await client.packages.list()
    rows: list[list[str]] = []
    for one in packages:
        kind = "invalid" if one.error else ", ".join(one.types)
        rows.append(
            [one.name, kind, ctx.screen.one_line((one.error or one.description or "").replace("\n", "; hint: "), 200)]
        )
    empty = "No packages. Create one: guild package new NAME. Install one: guild package add DIR"
    ctx.print_table(rows, packages, head=["name", "type", "description"], empty=empty)


@command(_NAME, JSON)
async def show(ctx: Context) -> None:
    client = await ctx.connect("read")
    ctx.print(await client.packages.get(ctx.args.name, ctx.frame), _print)


def _print(details: PackageDetails, screen: Screen) -> None:
    package = details.package
    rights = details.rights or {}
    rows = [
        ["package", package.name],
        ["type", ", ".join(package.types)],
        ["description", screen.one_line(package.description or "", 200)],
        ["version", package.version or ""],
        ["folder", str(package.path)],
        *([name, screen.one_line(_format_value(value), 400)] for name, value in rights.items()),
        ["runs code", ", ".join(one for one in (details.activate, details.export) if one)],
    ]
    screen.facts(rows)
    if details.tools:
        screen.heading("\nexported tools")
        tools = [(tool.name, ", ".join(tool.capabilities), tool.description) for tool in details.tools]
        screen.table([[screen.one_line(cell, 100) for cell in row] for row in tools])
    if details.posture:
        screen.heading("\nposture")
        more = len(details.posture) - _MAX_POSTURE_CHARS
        screen.result(screen.quote_block(details.posture[:_MAX_POSTURE_CHARS]))
        if more > 0:
            screen.note(f"... and {format_count(more, 'more character')}")
    screen.heading("\nfiles")
    files = [
        [screen.exact(file.path), format_count(file.size, "byte"), "runs" if file.runs else ""]
        for file in details.files
    ]
    screen.table(files)
    for problem in details.problems:
        screen.note(f"guild: {problem}", "yellow")


def _format_value(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@command(
    argument("name", metavar="NAME", help="the name of the package"),
    exclusive(
        argument(
            "--type",
            dest="kind",
            choices=("worker", "toolbox", "both"),
            help="the kind of the package (default: worker)",
        ),
        argument("--from", dest="template", metavar="PACKAGE", help="copy a package that comes with Guildhall"),
    ),
    JSON,
)
async def new(ctx: Context) -> None:
    client, name = await ctx.connect(), ctx.args.name
    path = await client.packages.create(name, kind=ctx.args.kind or "worker", template=ctx.args.template)
    ctx.print({"package": name, "path": str(path)}, str(path))
    ctx.screen.note(f"Show it: guild package show {name}")


@command(
    argument("folder", metavar="DIR", help="the folder with its pyproject.toml"),
    argument("--yes", action="store_true", help="install it without asking"),
    argument("--force", action="store_true", help="replace an installed package, which is archived"),
    JSON,
)
async def add(ctx: Context) -> int | None:
    client, screen = await ctx.connect(), ctx.screen
    folder = ctx.frame.cwd / ctx.args.folder
    details = await client.packages.inspect(folder)
    if not ctx.as_json:
        _print(details, screen)
    name = details.package.name
    if not ctx.args.force and any(one.name == name for one in await client.packages.list()):
        raise Conflict(f"package {name!r} is already installed", hint="Use --force to replace and archive it.")
    if not ctx.args.yes:
        if not screen.is_interactive:
            words = ["guild", "package", "add", ctx.args.folder, "--yes", *(["--force"] if ctx.args.force else [])]
            hint = f"Install it: {shlex.join(words)}"
            raise Refused(f"cannot install {name}: you have not confirmed it", hint=hint)
        if not await ask_yes_no(f"Install {name}? Its code runs confined and needs no trust. [y]es  [n]o:", screen):
            screen.note("Nothing was installed.", "yellow")
            return exit_codes.NEEDS_YOU
    added = await client.packages.add(folder, seen=details.digest, force=ctx.args.force)
    kept = str(added.backup) if added.backup else None
    ctx.print({**details.as_dict(), "path": str(added.path), "kept": kept}, str(added.path))
    if kept and not ctx.as_json:
        screen.note(f"The replaced version is in {kept}")
    return None


@command(_NAME, JSON)
async def rm(ctx: Context) -> None:
    client, name = await ctx.connect(), ctx.args.name
    kept = await client.packages.remove(name)
    ctx.print({"package": name, "kept": str(kept)}, str(kept))
    ctx.screen.note(f"Uninstalled {name}. Its files are in {kept}")
