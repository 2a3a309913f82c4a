"""`guild member ls`, `show`, `tools`, `call` and `new`: list, print, call and create guild members.

Does not dispatch jobs to members (see `cli.commands.jobs.dispatch`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from guildhall.cli import exit_codes
from guildhall.cli.arguments import json_object
from guildhall.cli.command import JSON, Context, argument, command

if TYPE_CHECKING:
    from collections.abc import Mapping

    from guildhall.cli.screen import Screen
    from guildhall.members.model import MemberDetails

_NAME = argument("name", metavar="NAME", help="a member's name, or project/NAME, or home/NAME")


@command(JSON)
async def ls(ctx: Context) -> None:
    client = await ctx.connect("read")
    members = await client.members.list(ctx.frame)
    empty = "No members here. `guild member new NAME` creates one."
    head = ["name", "state", "from", "accepts", "description"]
    ctx.print_table([_row(one, ctx.screen) for one in members], members, head=head, empty=empty)


def _row(shown: MemberDetails, screen: Screen) -> list[str]:
    member = shown.member
    summary = screen.one_line(member.error or member.description or "", 80)
    return [member.name, _state(shown), member.scope, "jobs" if member.accepts_jobs else "", summary]


def _state(shown: MemberDetails) -> str:
    if shown.member.error is not None:
        return "invalid"
    return "not trusted" if not shown.trusted else "not running" if shown.state == "trusted" else shown.state


@command(_NAME, JSON)
async def show(ctx: Context) -> None:
    client = await ctx.connect("read")
    ctx.print(await client.members.get(ctx.args.name, ctx.frame), _print)


def _print(shown: MemberDetails, screen: Screen) -> None:
    member, manifest = shown.member, shown.member.manifest
    assert manifest is not None
    rows = [
        ["member", member.name],
        ["display name", screen.one_line(member.display_name, 200)],
        ["description", screen.one_line(member.description or "", 200)],
        ["version", screen.one_line(manifest.version or "", 60)],
        ["folder", f"{member.folder} ({member.scope})"],
        ["capabilities", screen.one_line(", ".join(member.capabilities), 200)],
        ["command", screen.one_line(" ".join([manifest.mcp.command, *manifest.mcp.args]), 200)],
        ["variables", ", ".join(manifest.mcp.variables)],
        ["state", _state(shown)],
        ["process", f"{shown.pid}, port {shown.port}" if shown.pid else ""],
        ["last message", screen.one_line(shown.note or "", 400)],
        ["log", str(shown.log or "")],
    ]
    screen.facts(rows)
    if not shown.trusted:
        screen.note("Review it, then: guild trust")


@command(
    argument("name", metavar="NAME", help="the new member's name"),
    argument("--from", metavar="TEMPLATE", dest="template", help="a member that comes with Guildhall"),
    JSON,
)
async def new(ctx: Context) -> None:
    client, name, template = await ctx.connect(), ctx.args.name, ctx.args.template
    path = await client.members.create(name, ctx.frame, template=template)
    ctx.print({"member": name, "path": str(path)}, str(path))
    use = f"guild member tools {name}" if template is None else f'guild dispatch {name} "..."'
    ctx.screen.note(f"Review it, then: guild trust, {use}")


@command(_NAME, JSON)
async def tools(ctx: Context) -> None:
    client, screen = await ctx.connect(), ctx.screen
    found = await ctx.run_trusted(lambda: client.members.tools(ctx.args.name, ctx.frame))
    rows = [[tool["name"], _arguments(tool), screen.one_line(tool["description"], 100)] for tool in found]
    ctx.print_table(rows, list(found), empty="No tools.")


def _arguments(tool: Mapping[str, Any]) -> str:
    """Return the arguments of a tool, with optional arguments in brackets. Skip invalid parts of its schema."""
    schema: Any = tool["input_schema"]
    fields, required = schema.get("properties"), schema.get("required")
    if not isinstance(fields, dict):
        return ""
    arguments: list[str] = []
    for name, field in cast("dict[str, Any]", fields).items():
        kind: Any = cast("dict[str, Any]", field).get("type") if isinstance(field, dict) else None
        text = f"{name}: {kind}" if isinstance(kind, str) else name
        arguments.append(text if isinstance(required, list) and name in required else f"[{text}]")
    return ", ".join(arguments)


@command(
    _NAME,
    argument("tool", metavar="TOOL", help="one of its tools (`guild member tools NAME`)"),
    argument("arguments", metavar="JSON", nargs="?", help="the tool's arguments, an object"),
    JSON,
)
async def call(ctx: Context) -> int:
    from guildhall.tools.model import ToolResult

    name, tool, given = ctx.args.name, ctx.args.tool, ctx.args.arguments
    arguments = {} if given is None else json_object(given, "arguments", """'{"text": "hello"}'""")
    client = await ctx.connect()
    data = await ctx.run_trusted(lambda: client.members.call(name, tool, arguments, ctx.frame))
    result = ToolResult.from_dict(data)
    if result.is_error and not ctx.as_json:
        ctx.screen.note(f"guild: {tool} of the member {name} failed: {result.text}", "red")
    else:
        ctx.print(dict(data), result.text)
    return exit_codes.FAILED if result.is_error else exit_codes.DONE
