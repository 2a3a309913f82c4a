"""`guild member ls`, `show`, `tools`, `call`, `new`, `stop` and `restart`: list, call, create and restart members.

Does not dispatch jobs to members (see `cli.commands.jobs.dispatch`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from guildhall.cli import exit_codes
from guildhall.cli.argument_parser import json_object
from guildhall.cli.command import JSON, Context, argument, command

if TYPE_CHECKING:
    from guildhall.cli.screen import Screen
    from guildhall.members.model import MemberDetails

_NAME = argument("name", metavar="NAME", help="a member's name, or project/NAME, or home/NAME")


@command(JSON)
async def ls(ctx: Context) -> None:
    client = await ctx.connect("read")
    members = await client.members.list(ctx.frame)
    empty = "No members here. Create one: guild member new NAME"
    head = ["name", "state", "from", "accepts", "description"]
    ctx.print_table([_row(one, ctx.screen) for one in members], members, head=head, empty=empty)


def _row(details: MemberDetails, screen: Screen) -> list[str]:
    member = details.member
    summary = screen.one_line((member.error or member.description or "").replace("\n", "; hint: "), 160)
    return [member.name, _state(details), member.scope, "jobs" if member.accepts_jobs else "", summary]


def _state(details: MemberDetails) -> str:
    if details.member.error is not None:
        return "invalid"
    return "not trusted" if not details.trusted else "not running" if details.state == "trusted" else details.state


@command(_NAME, JSON)
async def show(ctx: Context) -> None:
    client = await ctx.connect("read")
    ctx.print(await client.members.get(ctx.args.name, ctx.frame), _print)


def _print(details: MemberDetails, screen: Screen) -> None:
    member, manifest = details.member, details.member.manifest
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
        ["state", _state(details)],
        ["process", f"{details.pid}, port {details.port}" if details.pid else ""],
        ["last message", screen.one_line(details.note or "", 400)],
        ["log", str(details.log or "")],
    ]
    screen.facts(rows)
    if not details.trusted:
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
        type: Any = cast("dict[str, Any]", field).get("type") if isinstance(field, dict) else None
        text = f"{name}: {type}" if isinstance(type, str) else name
        arguments.append(text if isinstance(required, list) and name in required else f"[{text}]")
    return ", ".join(arguments)


@command(_NAME, JSON)
async def stop(ctx: Context) -> None:
    client = await ctx.connect()
    details = await client.members.stop(ctx.args.name, ctx.frame)
    ctx.print(details, f"Stopped {details.member.name}. The next use starts it again.")


@command(_NAME, JSON)
async def restart(ctx: Context) -> None:
    client = await ctx.connect()
    details = await ctx.run_trusted(lambda: client.members.restart(ctx.args.name, ctx.frame))
    ctx.print(details, f"Restarted {details.member.name} (pid {details.pid}, port {details.port}).")


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
