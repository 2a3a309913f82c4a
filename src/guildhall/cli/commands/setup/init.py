"""`guild init [DIR]`: writes a starter folder with a worker that runs at once, or a worked example.

Does not contain the files (see `cli.demo.starter`). Invariant: an existing file is never overwritten.
"""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from guildhall.cli.command import JSON, Context, argument, command
from guildhall.cli.demo.starter import EXAMPLES, FIRST_TASK, SCRIPTED, example, files
from guildhall.core.errors import Conflict, ModelUnusable

if TYPE_CHECKING:
    from collections.abc import Mapping

_CLIS = ("claude", "codex")


@command(
    argument("dir", metavar="DIR", nargs="?", default=".", help="the folder; made if it is not there"),
    argument("--example", choices=EXAMPLES, metavar="NAME", help=f"a worked example instead: {', '.join(EXAMPLES)}"),
    JSON,
)
def init(ctx: Context) -> None:
    folder, name, screen = Path(ctx.args.dir).expanduser(), ctx.args.example, ctx.screen
    if name:
        model, why = None, "The model is a script: it needs no key, and its prices are made up."
        texts, steps = example(name), list(EXAMPLES[name])
    else:
        model, why = _model(os.environ)
        texts = files(model)
        steps = ["guild worker ls", f"guild run greeter {shlex.quote(FIRST_TASK)}", "guild ls"]
    made: list[str] = []
    kept: list[str] = []
    for path, text in texts.items():
        (made if _write(folder / path, text) else kept).append(path)
    steps = _from_here(folder, steps)
    if ctx.args.json:
        screen.json({"dir": str(folder.absolute()), "made": made, "kept": kept, "model": model, "next": steps})
        return
    for path in made:
        screen.result(f"made   {folder / path}")
    for path in kept:
        screen.result(f"kept   {folder / path} (it was there)")
    screen.note(f"{why} guildhall.yaml was there and keeps its own." if "guildhall.yaml" in kept else why)
    if found := [name for name in _CLIS if shutil.which(name)]:
        screen.note(f"Found on this machine: {', '.join(found)}.")
    screen.note("Next:\n" + "\n".join(f"  {step}" for step in steps))


def _model(environ: Mapping[str, str]) -> tuple[str, str]:
    """The default model, and why it is this one."""
    from guildhall.models.catalog import auto_model, detected_keys

    keys = ", ".join(key.variable for key in detected_keys(environ))
    try:
        model = auto_model(environ)
    except ModelUnusable:
        found = f"Found {keys}; name a model of that provider in guildhall.yaml to use it." if keys else ""
        scripted = "The model is a script for now: it needs no key, and its prices are made up."
        return SCRIPTED, f"{found or 'No key was found.'} {scripted}"
    return model, f"Found {keys}. The model is {model}."


def _write(path: Path, text: str) -> bool:
    """Whether the file was made; one that is there stays as it is, whatever it is."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        if path.is_symlink() or path.exists():
            return False
        raise Conflict(f"{error.filename} is not a folder", hint="Name another one: guild init DIR") from None
    except (OSError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) else str(error)
        raise Conflict(f"{path} cannot be written: {said}", hint="Name another folder: guild init DIR") from None
    return True


def _from_here(folder: Path, steps: list[str]) -> list[str]:
    away = folder.absolute() != Path.cwd()
    return [f"cd {shlex.quote(str(folder))}", *steps] if away else steps
