"""`guild member ls`, `show`, `tools`, `call` and `new`: the plug-ins that can be reached from here."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

from guildhall.cli import exit_codes
from guildhall.cli.connection import with_hall
from guildhall.cli.trust_prompt import once_trusted
from guildhall.core.errors import UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from guildhall.cli.screen import Screen
    from guildhall.core.frame import Frame
    from guildhall.hall.client.interface import HallClient
    from guildhall.members.model import MemberShown


def arguments(parser: argparse.ArgumentParser) -> None:
    command = parser.get_default("command")
    if command == "member new":
        parser.add_argument("name", metavar="NAME", help="the new member's name")
        parser.add_argument("--from", metavar="TEMPLATE", dest="template", help="copy one that comes with Guildhall")
    elif command != "member ls":
        parser.add_argument("name", metavar="NAME", help="a member's name, or project/NAME, or home/NAME")
    if command == "member call":
        parser.add_argument("tool", metavar="TOOL", help="one of its tools (`guild member tools NAME`)")
        parser.add_argument("arguments", metavar="JSON", nargs="?", help="the tool's arguments, an object")
    parser.add_argument("--json", action="store_true", help="print JSON")


def main(args: argparse.Namespace, screen: Screen) -> int:
    verb = args.command.rpartition(" ")[2]
    looks = verb in ("ls", "show")
    given = _arguments(args.arguments) if verb == "call" else {}

    async def work(client: HallClient, frame: Frame) -> int:
        if verb == "ls":
            return _ls(await client.members.list(frame), args.json, screen)
        if verb == "show":
            return _show(await client.members.get(args.name, frame), args.json, screen)
        if verb == "new":
            return await _new(args, client, frame, screen)

        async def done() -> int:
            if verb == "tools":
                return _tools(await client.members.tools(args.name, frame), args.json, screen)
            result = await client.members.call(args.name, args.tool, given, frame)
            return _called(result, f"the tool {args.tool} of the member {args.name}", args.json, screen)

        return await once_trusted(done, lambda: client.trust.inspect(frame), client, screen)

    return with_hall(work, screen, readonly=looks)


def _arguments(text: str | None) -> dict[str, Any]:
    hint = """Such as '{"text": "hello"}'."""
    try:
        given: Any = json.loads(text) if text is not None else {}
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the arguments are not JSON: {error}", hint=hint) from None
    if not isinstance(given, dict):
        raise UsageError("the arguments are not an object", hint=hint)
    return cast("dict[str, Any]", given)


def _ls(members: Sequence[MemberShown], as_json: bool, screen: Screen) -> int:
    if as_json:
        screen.json([shown.as_dict() for shown in members])
        return exit_codes.DONE
    if not members:
        screen.note("There are no members here. `guild member new NAME` makes one.")
        return exit_codes.DONE
    rows = [["name", "state", "from", "takes", "what it is for"]]
    for shown in members:
        member = shown.member
        takes = "work" if member.takes_work else ""
        said = screen.one_line(member.error or member.description or "", 80)
        rows.append([member.name, _state(shown), member.scope, takes, said])
    screen.table(rows)
    return exit_codes.DONE


def _state(shown: MemberShown) -> str:
    if shown.member.error is not None:
        return "invalid"
    return "not trusted" if not shown.trusted else "not running" if shown.state == "trusted" else shown.state


def _show(shown: MemberShown, as_json: bool, screen: Screen) -> int:
    if as_json:
        screen.json(shown.as_dict())
        return exit_codes.DONE
    member, manifest = shown.member, shown.member.manifest
    assert manifest is not None
    rows = [
        ["member", member.name],
        ["called", screen.one_line(member.display_name, 200)],
        ["what it is for", screen.one_line(member.description or "", 200)],
        ["version", screen.one_line(manifest.version or "", 60)],
        ["folder", f"{member.folder} ({member.scope})"],
        ["capabilities", screen.one_line(", ".join(member.capabilities), 200)],
        ["runs", screen.one_line(" ".join([manifest.mcp.command, *manifest.mcp.args]), 200)],
        ["is given", ", ".join(manifest.mcp.variables)],
        ["state", _state(shown)],
        ["process", f"{shown.pid}, port {shown.port}" if shown.pid else ""],
        ["last", screen.one_line(shown.note or "", 400)],
        ["log", str(shown.log or "")],
    ]
    screen.table([row for row in rows if row[1]])
    if not shown.trusted:
        screen.note("Look at it, then: guild trust")
    return exit_codes.DONE


async def _new(args: argparse.Namespace, client: HallClient, frame: Frame, screen: Screen) -> int:
    path = await client.members.create(args.name, frame, template=args.template)
    screen.json({"member": args.name, "path": str(path)}) if args.json else screen.result(str(path))
    use = f"guild member tools {args.name}" if args.template is None else f'guild dispatch {args.name} "..."'
    screen.note(f"Look at it, then: guild trust, {use}")
    return exit_codes.DONE


def _tools(tools: Sequence[Mapping[str, Any]], as_json: bool, screen: Screen) -> int:
    if as_json:
        screen.json(list(tools))
    elif not tools:
        screen.note("It has no tools.")
    else:
        screen.table([[tool["name"], _taken(tool), screen.one_line(tool["description"], 100)] for tool in tools])
    return exit_codes.DONE


def _taken(tool: Mapping[str, Any]) -> str:
    """The arguments of a tool; those in brackets may be left out. What is odd in a member's schema is left out."""
    schema: Any = tool["input_schema"]
    fields, needed = schema.get("properties"), schema.get("required")
    if not isinstance(fields, dict):
        return ""
    told: list[str] = []
    for name, field in cast("dict[str, Any]", fields).items():
        kind: Any = cast("dict[str, Any]", field).get("type") if isinstance(field, dict) else None
        said = f"{name}: {kind}" if isinstance(kind, str) else name
        told.append(said if isinstance(needed, list) and name in needed else f"[{said}]")
    return ", ".join(told)


def _called(result: Mapping[str, Any], who: str, as_json: bool, screen: Screen) -> int:
    from guildhall.tools.model import ToolResult

    told = ToolResult.from_dict(result)
    if as_json:
        screen.json(dict(result))
    elif told.is_error:
        screen.note(f"guild: {who} says: {told.text}", "red")
    else:
        screen.result(told.text)
    return exit_codes.FAILED if told.is_error else exit_codes.DONE
