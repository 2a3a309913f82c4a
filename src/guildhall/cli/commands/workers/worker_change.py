"""`guild worker new`, `lock`, `unlock`, `promote` and `retire`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.cli import exit_codes
from guildhall.cli.commands.runs.run import worker_name
from guildhall.cli.connection import with_hall

if TYPE_CHECKING:
    import argparse

    from guildhall.cli.screen import Screen
    from guildhall.core.frame import Frame
    from guildhall.hall.client.interface import HallClient
    from guildhall.workers.model import Worker

_DONE = {
    "worker lock": "is locked: nothing overwrites its file",
    "worker unlock": "is unlocked",
    "worker promote": "is active",
    "worker retire": "is retired: it takes no new work",
}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the worker's name")
    if parser.get_default("command") == "worker new":
        parser.add_argument("--force", action="store_true", help="overwrite a file that is there, even a locked one")
    parser.add_argument("--json", action="store_true", help="print an object")


def main(args: argparse.Namespace, screen: Screen) -> int:
    name = worker_name(args.name)

    async def work(client: HallClient, frame: Frame) -> int:
        if args.command == "worker new":
            path = await client.workers.create(name, frame, force=args.force)
            screen.json({"worker": name, "path": str(path)}) if args.json else screen.result(str(path))
            screen.note(f'Fill it in, then: guild worker validate {name}, guild run {name} "..."')
            return exit_codes.DONE
        worker = await _change(args.command, name, client, frame)
        screen.json(worker.as_dict()) if args.json else screen.result(f"{worker.name} {_DONE[args.command]}")
        return exit_codes.DONE

    return with_hall(work, screen)


async def _change(command: str, name: str, client: HallClient, frame: Frame) -> Worker:
    verbs = {
        "worker lock": client.workers.lock,
        "worker unlock": client.workers.unlock,
        "worker promote": client.workers.promote,
        "worker retire": client.workers.retire,
    }
    return await verbs[command](name, frame)
