"""`guild doc ls`, `read`, `write` and `append`: the documents that a workflow works on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.cli import exit_codes
from guildhall.cli.connection import with_hall
from guildhall.cli.targets import target_of, text_of

if TYPE_CHECKING:
    import argparse

    from guildhall.cli.screen import Screen
    from guildhall.core.frame import Frame
    from guildhall.hall.client.interface import Document, HallClient


def arguments(parser: argparse.ArgumentParser) -> None:
    command = parser.get_default("command")
    parser.add_argument("target", metavar="TARGET", help="@workflow:tag")
    if command != "doc ls":
        parser.add_argument("file", metavar="FILE", nargs="?", help="which document; without it: notes.md")
    if command in ("doc write", "doc append"):
        parser.add_argument("--text", metavar="T", help="the text; without it standard input is read")
    if command == "doc write":
        parser.add_argument("--base", metavar="HASH", help="only if the document is still the one with this hash")
    parser.add_argument("--json", action="store_true", help="print an object")


def main(args: argparse.Namespace, screen: Screen) -> int:
    target, verb = target_of(args.target), args.command.partition(" ")[2]
    content = text_of(args.text, "text") if verb in ("write", "append") else ""

    async def work(client: HallClient, frame: Frame) -> int:
        match verb:
            case "ls":
                found = await client.rooms.documents(target)
                if args.json:
                    screen.json({"documents": [{"path": one.path, "size": one.size} for one in found]})
                elif found:
                    screen.table([[one.path, f"{one.size:,} bytes"] for one in found])
                else:
                    screen.note("No documents yet.")
            case "read":
                document = await client.rooms.read_document(target, file=args.file)
                screen.json(document.as_dict()) if args.json else screen.result(document.content)
            case "write":
                document = await client.rooms.write_document(target, content, file=args.file, base=args.base)
                _written(document, args.json, screen)
            case _:
                _written(await client.rooms.append_document(target, content, file=args.file), args.json, screen)
        return exit_codes.DONE

    return with_hall(work, screen, readonly=verb in ("ls", "read"))


def _written(document: Document, as_json: bool, screen: Screen) -> None:
    size = len(document.content.encode())
    if as_json:
        screen.json({"path": document.path, "digest": document.digest, "size": size})
    else:
        screen.result(f"{document.path}: {size:,} bytes")
