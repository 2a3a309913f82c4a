"""`guild project add`, `rm`, `ls` and `check`: the repositories that the guild works for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from guildhall.cli import exit_codes
from guildhall.cli.connection import with_hall
from guildhall.core.errors import UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from guildhall.cli.screen import Screen
    from guildhall.core.frame import Frame
    from guildhall.hall.client.interface import HallClient
    from guildhall.projects.model import ProjectShown


def arguments(parser: argparse.ArgumentParser) -> None:
    verb = parser.get_default("command").rpartition(" ")[2]
    if verb == "add":
        parser.add_argument("path", metavar="PATH", nargs="?", default=".", help="the repository (this folder)")
        parser.add_argument("--name", metavar="NAME", help="what to call it (its folder's name)")
        parser.add_argument("--branch", metavar="BRANCH", help="your branch, which is followed (the one you are on)")
    elif verb == "rm":
        parser.add_argument("name", metavar="NAME", help="a project's name")
    elif verb == "check":
        parser.add_argument("names", metavar="NAME", nargs="*", help="projects' names; none: all of them")
    parser.add_argument("--json", action="store_true", help="print JSON")


def main(args: argparse.Namespace, screen: Screen) -> int:
    verb = args.command.rpartition(" ")[2]
    if verb == "add":
        if not args.path:
            raise UsageError("PATH: it is empty", hint="Leave it out for the folder you are in.")
        args.path = Path(args.path).expanduser()
    done = {"add": _add, "rm": _rm, "ls": _ls, "check": _check}[verb]

    async def work(client: HallClient, frame: Frame) -> int:
        return await done(args, client, frame, screen)

    return with_hall(work, screen, readonly=verb in ("ls", "check"))


async def _add(args: argparse.Namespace, client: HallClient, frame: Frame, screen: Screen) -> int:
    before = [one.name for one in await client.projects.list()]
    project = await client.projects.add(frame.cwd / args.path, name=args.name, branch=args.branch)
    screen.json(project.as_dict()) if args.json else screen.result(project.name)
    if project.name in before:
        screen.note(f"{project.name} was moved: it is registered at {project.path} now, with all its records.")
    else:
        screen.note(f"{project.path} is registered; the guild follows its branch {project.branch}.")
    return exit_codes.DONE


async def _rm(args: argparse.Namespace, client: HallClient, frame: Frame, screen: Screen) -> int:
    removed = await client.projects.remove(args.name)
    project = removed.project
    told = project.as_dict() if project else {"name": removed.name, "error": removed.error}
    screen.json(told) if args.json else screen.result(removed.name)
    screen.note(f"It is registered no more. {project.path if project else 'Its folder'} and all in it is as it was.")
    return exit_codes.DONE


async def _ls(args: argparse.Namespace, client: HallClient, frame: Frame, screen: Screen) -> int:
    shown = await client.projects.list()
    if args.json:
        screen.json([one.as_dict() for one in shown])
    elif not shown:
        screen.note("There are no projects. `guild project add PATH` registers one.")
    else:
        rows = [["name", "branch", "lives", "where"]]
        screen.table([*rows, *(_row(one, screen) for one in shown)])
    return exit_codes.DONE


def _row(shown: ProjectShown, screen: Screen) -> list[str]:
    if shown.project is None:
        return [screen.one_line(shown.name, 64), "", "", f"invalid: {screen.one_line(shown.error or '', 120)}"]
    lives = str(len(shown.living)) if shown.living else ""
    return [shown.name, screen.one_line(shown.project.branch, 60), lives, screen.one_line(str(shown.project.path), 200)]


async def _check(args: argparse.Namespace, client: HallClient, frame: Frame, screen: Screen) -> int:
    names: Sequence[str] = args.names or [one.name for one in await client.projects.list()]
    told: list[dict[str, Any]] = []
    for name in dict.fromkeys(names):
        problems = await client.projects.check(name)
        told.append({"name": name, "ok": not any(one.blocks for one in problems), "problems": [*map(vars, problems)]})
        if args.json:
            continue
        screen.result(f"{name}: {'ok' if not problems else ''}".removesuffix(" "))
        for problem in problems:
            screen.result(f"  {'wrong' if problem.blocks else 'note'}: {screen.one_line(problem.message, 300)}")
            if problem.hint:
                screen.result(f"         {screen.one_line(problem.hint, 300)}")
    if args.json:
        screen.json(told)
    elif not told:
        screen.note("There are no projects. `guild project add PATH` registers one.")
    return exit_codes.DONE if all(one["ok"] for one in told) else exit_codes.FAILED
