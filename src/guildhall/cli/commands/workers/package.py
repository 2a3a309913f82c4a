"""`guild package ls`, `show`, `validate`, `new`, `add` and `rm`: workers and toolboxes as folders of their own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from guildhall.cli import exit_codes
from guildhall.cli.connection import with_hall
from guildhall.cli.prompt import agrees
from guildhall.core.errors import Conflict, GuildError, Refused

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from guildhall.cli.screen import Screen
    from guildhall.core.frame import Frame
    from guildhall.hall.client.interface import HallClient
    from guildhall.workers.package_text import PackageShown, PackageTool
    from guildhall.workers.packages import PackageListed

_LONGEST = 2_000  # characters of a posture that are shown before it is added


def arguments(parser: argparse.ArgumentParser) -> None:
    match parser.get_default("command"):
        case "package show" | "package rm":
            parser.add_argument("name", metavar="NAME", help="the package")
        case "package validate":
            parser.add_argument(
                "names", metavar="NAME|DIR", nargs="*", help="packages, or folders with a slash in them"
            )
        case "package new":
            parser.add_argument("name", metavar="NAME", help="its name")
            kinds = parser.add_mutually_exclusive_group()
            kinds.add_argument("--type", dest="kind", choices=("worker", "toolbox", "both"), help="what it is")
            kinds.add_argument(
                "--from", dest="template", metavar="PACKAGE", help="a copy of one that comes with Guildhall"
            )
        case "package add":
            parser.add_argument("folder", metavar="DIR", help="the folder with its pyproject.toml")
            parser.add_argument("--yes", action="store_true", help="add it without asking")
            parser.add_argument("--force", action="store_true", help="in the place of one that is there, which is kept")
        case _:
            pass
    parser.add_argument("--json", action="store_true", help="print JSON")


def main(args: argparse.Namespace, screen: Screen) -> int:
    verb = args.command.rpartition(" ")[2]

    async def work(client: HallClient, frame: Frame) -> int:
        match verb:
            case "show":
                shown = await client.packages.get(args.name, frame)
                screen.json(shown.as_dict()) if args.json else _show(shown, screen)
                return exit_codes.DONE
            case "validate":
                return await _validate(args, client, frame, screen)
            case "new":
                return await _new(args, client, screen)
            case "add":
                return await _add(args, client, frame, screen)
            case "rm":
                kept = await client.packages.remove(args.name)
                screen.json({"package": args.name, "kept": str(kept)}) if args.json else screen.result(str(kept))
                screen.note(f"The package {args.name} is out of use. Its files are kept there.")
                return exit_codes.DONE
            case _:
                return _ls(await client.packages.list(), args.json, screen)

    return with_hall(work, screen, readonly=verb in ("ls", "show", "validate"))


def _ls(packages: Sequence[PackageListed], as_json: bool, screen: Screen) -> int:
    if as_json:
        screen.json([package.as_dict() for package in packages])
    elif not packages:
        screen.note("There are no packages. `guild package new NAME` makes one, `guild package add DIR` adds one.")
    else:
        rows = [["name", "type", "what it is for"]]
        for one in packages:
            kind = "invalid" if one.error else ", ".join(one.types)
            rows.append([one.name, kind, screen.one_line(one.error or one.description or "", 200)])
        screen.table(rows)
    return exit_codes.DONE


def _show(shown: PackageShown, screen: Screen) -> None:
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
    screen.table([row for row in rows if row[1]])
    if shown.tools:
        screen.heading("\ntools for others")
        screen.table([_line(tool, screen) for tool in shown.tools])
    if shown.posture:
        screen.heading("\nposture")
        more = len(shown.posture) - _LONGEST
        screen.result(screen.barred(shown.posture[:_LONGEST], wrapped=screen.out.isatty()))
        screen.note(f"... and {more:,} more characters") if more > 0 else None
    screen.heading("\nfiles")
    files = [[screen.exactly(file.path), f"{file.size:,} bytes", "runs" if file.runs else ""] for file in shown.files]
    screen.table(files)
    for problem in shown.problems:
        screen.note(f"guild: {problem}", "yellow")


def _line(tool: PackageTool, screen: Screen) -> list[str]:
    return [screen.one_line(said, 100) for said in (tool.name, ", ".join(tool.capabilities), tool.description)]


def _said(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


async def _validate(args: argparse.Namespace, client: HallClient, frame: Frame, screen: Screen) -> int:
    names: list[str] = args.names or [one.name for one in await client.packages.list()]
    found: list[dict[str, Any]] = []
    for name in names:
        problems: list[str] = []
        try:
            if "/" in name or name in (".", ".."):
                await client.packages.inspect(frame.cwd / name)
            else:
                problems = [*(await client.packages.get(name, frame)).problems]
        except GuildError as error:
            problems = [str(error), *getattr(error, "others", ())]
        found.append({"package": name, "ok": not problems, "problems": problems})
        if not args.json:
            screen.result(f"{name}: {'ok' if not problems else 'cannot be used'}")
            for problem in problems:
                screen.result("".join(f"  {line}\n" for line in screen.exactly(problem).splitlines()).rstrip("\n"))
    if args.json:
        screen.json(found)
    elif not names:
        screen.note("There are no packages.")
    if wrong := sum(not one["ok"] for one in found):
        screen.note(f"{wrong} of {len(found)} cannot be used.")
    return exit_codes.FAILED if wrong else exit_codes.DONE


async def _new(args: argparse.Namespace, client: HallClient, screen: Screen) -> int:
    path = await client.packages.create(args.name, kind=args.kind or "worker", template=args.template)
    screen.json({"package": args.name, "path": str(path)}) if args.json else screen.result(str(path))
    screen.note(f"Look at it: guild package show {args.name}")
    return exit_codes.DONE


async def _add(args: argparse.Namespace, client: HallClient, frame: Frame, screen: Screen) -> int:
    folder = frame.cwd / args.folder
    looked = await client.packages.inspect(folder)
    if not args.json:
        _show(looked, screen)
    name = looked.package.name
    if not args.force and any(one.name == name for one in await client.packages.list()):
        hint = "Use --force to put it in its place; the old one is kept aside."
        raise Conflict(f"there is already a package {name!r}", hint=hint)
    if not args.yes:
        if not screen.interactive:
            raise Refused(f"the package {name} is not added without a person's word", hint="Look at it, then: --yes")
        if not await agrees(f"Add {name}? What runs is confined, and need not be trusted again. yes, no:", screen):
            screen.note(f"Nothing was added. To add {name}, answer yes.", "yellow")
            return exit_codes.NEEDS_YOU
    added = await client.packages.add(folder, seen=looked.digest, force=args.force)
    if args.json:
        kept = str(added.kept) if added.kept else None
        screen.json({**looked.as_dict(), "path": str(added.path), "kept": kept})
        return exit_codes.DONE
    screen.result(str(added.path))
    if added.kept:
        screen.note(f"The one that was there is kept: {added.kept}")
    return exit_codes.DONE
