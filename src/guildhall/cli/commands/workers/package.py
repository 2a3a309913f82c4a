"""`guild package ls`, `show`, `validate`, `new`, `add` and `rm`: manage packages of workers and toolboxes.

`add` prints the content of a folder before it asks to copy it. Does not read packages (see `workers.package`).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from guildhall.cli import exit_codes
from guildhall.cli.command import JSON, Context, argument, command, exclusive
from guildhall.cli.prompt import agrees
from guildhall.core.errors import Conflict, GuildError, Refused

if TYPE_CHECKING:
    from guildhall.cli.screen import Screen
    from guildhall.workers.model import PackageDetails

_LONGEST = 2_000  # characters of a posture that are shown before it is added

_NAME = argument("name", metavar="NAME", help="the package")


@command(JSON)
async def ls(ctx: Context) -> None:
    client = await ctx.connect("read")
    packages = await client.packages.list()
    rows: list[list[str]] = []
    for one in packages:
        kind = "invalid" if one.error else ", ".join(one.types)
        rows.append([one.name, kind, ctx.screen.one_line(one.error or one.description or "", 200)])
    empty = "There are no packages. `guild package new NAME` makes one, `guild package add DIR` adds one."
    ctx.print_table(rows, packages, head=["name", "type", "what it is for"], empty=empty)


@command(_NAME, JSON)
async def show(ctx: Context) -> None:
    client = await ctx.connect("read")
    ctx.print(await client.packages.get(ctx.args.name, ctx.frame), _print)


def _print(shown: PackageDetails, screen: Screen) -> None:
    package = shown.package
    rights = shown.rights or {}
    rows = [
        ["package", package.name],
        ["type", ", ".join(package.types)],
        ["what it is for", screen.one_line(package.description or "", 200)],
        ["version", package.version or ""],
        ["folder", str(package.path)],
        *([name, screen.one_line(_said(value), 400)] for name, value in rights.items()),
        ["runs code", ", ".join(one for one in (shown.activate, shown.export) if one)],
    ]
    screen.facts(rows)
    if shown.tools:
        screen.heading("\ntools for others")
        tools = [(tool.name, ", ".join(tool.capabilities), tool.description) for tool in shown.tools]
        screen.table([[screen.one_line(cell, 100) for cell in row] for row in tools])
    if shown.posture:
        screen.heading("\nposture")
        more = len(shown.posture) - _LONGEST
        screen.result(screen.barred(shown.posture[:_LONGEST]))
        screen.note(f"... and {more:,} more characters") if more > 0 else None
    screen.heading("\nfiles")
    files = [[screen.exactly(file.path), f"{file.size:,} bytes", "runs" if file.runs else ""] for file in shown.files]
    screen.table(files)
    for problem in shown.problems:
        screen.note(f"guild: {problem}", "yellow")


def _said(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@command(argument("names", metavar="NAME|DIR", nargs="*", help="packages, or folders with a slash in them"), JSON)
async def validate(ctx: Context) -> int:
    client, screen = await ctx.connect("read"), ctx.screen
    names: list[str] = ctx.args.names or [one.name for one in await client.packages.list()]
    found: list[dict[str, Any]] = []
    for name in names:
        problems: list[str] = []
        try:
            if "/" in name or name in (".", ".."):
                await client.packages.inspect(ctx.frame.cwd / name)
            else:
                problems = [*(await client.packages.get(name, ctx.frame)).problems]
        except GuildError as error:
            problems = [str(error), *getattr(error, "others", ())]
        found.append({"package": name, "ok": not problems, "problems": problems})
        if not ctx.args.json:
            screen.result(f"{name}: {'ok' if not problems else 'cannot be used'}")
            for problem in problems:
                screen.result("".join(f"  {line}\n" for line in screen.exactly(problem).splitlines()).rstrip("\n"))
    if ctx.args.json:
        screen.json(found)
    elif not names:
        screen.note("There are no packages.")
    if wrong := sum(not one["ok"] for one in found):
        screen.note(f"{wrong} of {len(found)} cannot be used.")
    return exit_codes.FAILED if wrong else exit_codes.DONE


@command(
    argument("name", metavar="NAME", help="its name"),
    exclusive(
        argument("--type", dest="kind", choices=("worker", "toolbox", "both"), help="what it is"),
        argument("--from", dest="template", metavar="PACKAGE", help="a copy of one that comes with Guildhall"),
    ),
    JSON,
)
async def new(ctx: Context) -> None:
    client, name = await ctx.connect(), ctx.args.name
    path = await client.packages.create(name, kind=ctx.args.kind or "worker", template=ctx.args.template)
    ctx.print({"package": name, "path": str(path)}, str(path))
    ctx.screen.note(f"Look at it: guild package show {name}")


@command(
    argument("folder", metavar="DIR", help="the folder with its pyproject.toml"),
    argument("--yes", action="store_true", help="add it without asking"),
    argument("--force", action="store_true", help="in the place of one that is there, which is kept"),
    JSON,
)
async def add(ctx: Context) -> int | None:
    client, screen = await ctx.connect(), ctx.screen
    folder = ctx.frame.cwd / ctx.args.folder
    looked = await client.packages.inspect(folder)
    if not ctx.args.json:
        _print(looked, screen)
    name = looked.package.name
    if not ctx.args.force and any(one.name == name for one in await client.packages.list()):
        hint = "Use --force to put it in its place; the old one is kept aside."
        raise Conflict(f"there is already a package {name!r}", hint=hint)
    if not ctx.args.yes:
        if not screen.interactive:
            raise Refused(f"the package {name} is not added without a person's word", hint="Look at it, then: --yes")
        if not await agrees(f"Add {name}? What runs is confined, and need not be trusted again. yes, no:", screen):
            screen.note(f"Nothing was added. To add {name}, answer yes.", "yellow")
            return exit_codes.NEEDS_YOU
    added = await client.packages.add(folder, seen=looked.digest, force=ctx.args.force)
    kept = str(added.backup) if added.backup else None
    ctx.print({**looked.as_dict(), "path": str(added.path), "kept": kept}, str(added.path))
    if kept and not ctx.args.json:
        screen.note(f"The one that was there is kept: {kept}")
    return None


@command(_NAME, JSON)
async def rm(ctx: Context) -> None:
    client, name = await ctx.connect(), ctx.args.name
    kept = await client.packages.remove(name)
    ctx.print({"package": name, "kept": str(kept)}, str(kept))
    ctx.screen.note(f"The package {name} is out of use. Its files are kept there.")
