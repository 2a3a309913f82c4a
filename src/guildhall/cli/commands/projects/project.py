"""`guild project add`, `rm`, `ls` and `check`: register, list and check the git repositories of the guild.

Does not change a repository.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from guildhall.cli import exit_codes
from guildhall.cli.command import JSON, Context, argument, command
from guildhall.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from guildhall.cli.screen import Screen
    from guildhall.projects.model import ProjectEntry

_EMPTY = "There are no projects. `guild project add PATH` registers one."


def _path(text: str) -> Path:
    if not text:
        raise UsageError("PATH: it is empty", hint="Leave it out for the folder you are in.")
    return Path(text).expanduser()


@command(
    argument("path", metavar="PATH", nargs="?", type=_path, default=".", help="the repository (this folder)"),
    argument("--name", metavar="NAME", help="what to call it (its folder's name)"),
    argument("--branch", metavar="BRANCH", help="your branch, which is followed (the one you are on)"),
    JSON,
)
async def add(ctx: Context) -> None:
    client = await ctx.connect()
    before = [one.name for one in await client.projects.list()]
    project = await client.projects.add(ctx.frame.cwd / ctx.args.path, name=ctx.args.name, branch=ctx.args.branch)
    ctx.print(project, project.name)
    moved = f"{project.name} was moved: it is registered at {project.path} now, with all its records."
    new = f"{project.path} is registered; the guild follows its branch {project.branch}."
    ctx.screen.note(moved if project.name in before else new)


@command(argument("name", metavar="NAME", help="a project's name"), JSON)
async def rm(ctx: Context) -> None:
    client = await ctx.connect()
    removed = await client.projects.remove(ctx.args.name)
    project = removed.project
    ctx.print(project or {"name": removed.name, "error": removed.error}, removed.name)
    place = project.path if project else "Its folder"
    ctx.screen.note(f"It is registered no more. {place} and all in it is as it was.")


@command(JSON)
async def ls(ctx: Context) -> None:
    client = await ctx.connect("read")
    shown = await client.projects.list()
    rows = [_row(one, ctx.screen) for one in shown]
    ctx.print_table(rows, shown, head=["name", "branch", "lives", "where"], empty=_EMPTY)


def _row(shown: ProjectEntry, screen: Screen) -> list[str]:
    if shown.project is None:
        return [screen.one_line(shown.name, 64), "", "", f"invalid: {screen.one_line(shown.error or '', 120)}"]
    lives = str(len(shown.unfinished)) if shown.unfinished else ""
    return [shown.name, screen.one_line(shown.project.branch, 60), lives, screen.one_line(str(shown.project.path), 200)]


@command(argument("names", metavar="NAME", nargs="*", help="projects' names; none: all of them"), JSON)
async def check(ctx: Context) -> int:
    client, screen = await ctx.connect("read"), ctx.screen
    names: Sequence[str] = ctx.args.names or [one.name for one in await client.projects.list()]
    checked: list[dict[str, Any]] = []
    for name in dict.fromkeys(names):
        problems = await client.projects.check(name)
        ok = not any(one.blocks for one in problems)
        checked.append({"name": name, "ok": ok, "problems": [*map(vars, problems)]})
        if ctx.args.json:
            continue
        screen.result(f"{name}: {'ok' if not problems else ''}".removesuffix(" "))
        for problem in problems:
            screen.result(f"  {'wrong' if problem.blocks else 'note'}: {screen.one_line(problem.message, 300)}")
            if problem.hint:
                screen.result(f"         {screen.one_line(problem.hint, 300)}")
    if ctx.args.json:
        screen.json(checked)
    elif not checked:
        screen.note(_EMPTY)
    return exit_codes.DONE if all(one["ok"] for one in checked) else exit_codes.FAILED
