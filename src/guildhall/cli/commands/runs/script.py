"""`guild script`: a recorded run as a script that answers in the model's place, with a test in it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from guildhall.cli import exit_codes
from guildhall.cli.connection import with_hall
from guildhall.cli.targets import run_named
from guildhall.cli.trust_prompt import keep
from guildhall.core.errors import Conflict, GuildError, UsageError
from guildhall.tools.source import pin_of

if TYPE_CHECKING:
    import argparse

    from guildhall.cli.screen import Screen
    from guildhall.core.frame import Frame
    from guildhall.hall.client.interface import HallClient
    from guildhall.workers.trust import Seen

_SUFFIXES = (".yaml", ".yml")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN|TARGET", help="the id of the run, or of a job; @workflow:tag")
    parser.add_argument("--out", metavar="FILE", default="-", help="where to write it; `-`: standard output")
    parser.add_argument("--force", action="store_true", help="overwrite a file that is there")
    parser.add_argument("--json", action="store_true", help="print an object")


def main(args: argparse.Namespace, screen: Screen) -> int:
    file = None if args.out == "-" else _file(args.out)

    made: list[Seen] = []

    async def work(client: HallClient, frame: Frame) -> int:
        run = await run_named(args.run, client)
        text = screen.redact(await client.runs.script(run))  # the hall does not know all secrets of this terminal
        if file is not None:
            _write(file, text, force=args.force)
            made.extend(await _to_trust(file, text, client, frame))
        if args.json:
            screen.json({"run": run, "path": str(file) if file else None, "script": text})
        else:
            screen.result(str(file) if file else text)
        for line in text.splitlines():
            if line.startswith("# Left out: "):
                screen.note(line.removeprefix("# "), "yellow")
        if file is not None:
            screen.note(f"Run it with: guild test {file}")
        return exit_codes.DONE

    code = with_hall(work, screen, readonly=True)
    if made:
        keep(made, screen)
    return code


async def _to_trust(file: Path, text: str, client: HallClient, frame: Frame) -> list[Seen]:
    """The file, if it has to be trusted to be tested: the person has made it, of a run of their own."""
    try:
        looking = await client.trust.inspect(frame, at=file)
    except GuildError:  # there is no test in it
        return []
    return [seen for seen in looking.open if seen.digest == pin_of(text.encode())]


def _file(name: str) -> Path:
    if not name.endswith(_SUFFIXES):
        raise UsageError(f"--out: {name!r} does not end in .yaml", hint="A script is a YAML file: tests/NAME.yaml.")
    return Path(name).expanduser()


def _write(path: Path, text: str, *, force: bool) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise Conflict(f"{path} is there already", hint="Name another file, or overwrite it with --force.") from None
    except (OSError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) else str(error)
        raise Conflict(f"{path} cannot be written: {said}", hint="Name another file.") from None
