"""`guild project add`, `rm` and `ls`: register and list git repositories.

Does not change the files or branches of a repository.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from guildhall.cli.command import JSON, Context, argument, command
from guildhall.core.errors import UsageError

if TYPE_CHECKING:
    from guildhall.cli.screen import Screen
    from guildhall.projects.model import ProjectEntry

_EMPTY = "No projects. Register one: guild project add PATH"


def _path(text: str) -> Path:
    if not text:
        raise UsageError("invalid PATH: empty", hint="Omit it to use the current folder.")
    return Path(text).expanduser()


@command(
    argument("path", metavar="PATH", nargs="?", type=_path, default=".", help="the repository (default: this folder)"),
    argument("--name", metavar="NAME", help="the name of the project (default: the name of the folder)"),
    argument(
        "--branch",
        metavar="BRANCH",
        help="your branch, whose commits are merged into claude/main (default: the current branch)",
    ),
    JSON,
)
async def add(ctx: Context) -> None:
    client = await ctx.connect()
    before = [one.name for one in await client.projects.list()]
    project = await client.projects.add(ctx.frame.cwd / ctx.args.path, name=ctx.args.name, branch=ctx.args.branch)
    ctx.print(project, project.name)
    moved = f"Moved {project.name} to {project.path}, with all its records."
    new = f"Registered {project.path}. Work is merged to claude/main, based on {project.branch}."
    ctx.screen.note(moved if project.name in before else new)


@command(argument("name", metavar="NAME", help="a project's name"), JSON)
async def rm(ctx: Context) -> None:
    client = await ctx.connect()
    removed = await client.projects.remove(ctx.args.name)
    project = removed.project
    ctx.print(project or {"name": removed.name, "error": removed.error}, removed.name)
    folder = project.path if project else "its folder"
    ctx.screen.note(f"Unregistered {removed.name}. Nothing in {folder} was changed.")


@command(JSON)
async def ls(ctx: Context) -> None:
    client = await ctx.connect("read")
    entries = await client.projects.list()
    rows = [_row(one, ctx.screen) for one in entries]
    ctx.print_table(rows, entries, head=["name", "branch", "unfinished", "path"], empty=_EMPTY)


def _row(entry: ProjectEntry, screen: Screen) -> list[str]:
    if entry.project is None:
        return [screen.one_line(entry.name, 64), "", "", f"invalid: {screen.one_line(entry.error or '', 120)}"]
    unfinished = str(len(entry.unfinished)) if entry.unfinished else ""
    path = screen.one_line(str(entry.project.path), 200)
    return [entry.name, screen.one_line(entry.project.branch, 60), unfinished, path]
