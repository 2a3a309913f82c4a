"""`guild init [DIR]`: creates a starter project with a worker that runs without a key, or an example project.

The files are copied from `cli/demo/data`. Does not run anything.

Invariant: an existing file is never overwritten.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path

from guildhall.cli import demo
from guildhall.cli.command import JSON, Context, argument, command
from guildhall.core.errors import Conflict, ModelUnusable

_CLIS = ("claude", "codex")
# The example projects, each with its first commands.
_EXAMPLES = {
    "review": (
        "git init && git add . && git commit -m 'As it was'",
        "git apply change.patch",
        "guild trust review.yaml",
        "guild run review.yaml",
    ),
    "guild": (
        "git init -b main && git add . && git commit -m 'The shop'",
        "guild project add .",
        "guild run manager 'We need a discount in the cart.'",
    ),
    "office": ("guild plan chief", "guild run chief 'Add up the invoices'", "guild test"),
}
_SCRIPTED = "script:scripts/greeter.yaml"
_FIRST_TASK = "Greet everybody in notes/team.md"


@command(
    argument("dir", metavar="DIR", nargs="?", default=".", help="the folder, which is created if it does not exist"),
    argument("--example", choices=_EXAMPLES, metavar="NAME", help=f"a worked example instead: {', '.join(_EXAMPLES)}"),
    JSON,
)
def init(ctx: Context) -> None:
    folder, name, screen = Path(ctx.args.dir).expanduser(), ctx.args.example, ctx.screen
    texts = _load_files(name or "starter")
    if name:
        model, reason = None, "The model is a script: it needs no key, and its prices are made up."
        steps = list(_EXAMPLES[name])
    else:
        model, reason = _choose_model(os.environ)
        texts["guildhall.yaml"] = texts["guildhall.yaml"].replace(f"model: {_SCRIPTED}", f"model: {model}")
        steps = ["guild worker ls", f"guild run greeter {shlex.quote(_FIRST_TASK)}", "guild ls"]
    if folder.absolute() != Path.cwd():
        steps.insert(0, f"cd {shlex.quote(str(folder))}")
    created = [path for path, text in texts.items() if _write(folder / path, text)]
    kept = [path for path in texts if path not in created]
    if ctx.as_json:
        screen.json({"dir": str(folder.absolute()), "made": created, "kept": kept, "model": model, "next": steps})
        return
    for path in created:
        screen.result(f"Created {folder / path}")
    for path in kept:
        screen.result(f"Kept    {folder / path} (it exists)")
    screen.note(f"{reason} The existing guildhall.yaml is not changed." if "guildhall.yaml" in kept else reason)
    if found := [name for name in _CLIS if shutil.which(name)]:
        screen.note(f"Found on this machine: {', '.join(found)}.")
    screen.note("Next:\n" + "\n".join(f"  {step}" for step in steps))


def _load_files(name: str) -> dict[str, str]:
    """Return the texts of the starter project or of an example, by path."""
    top = Path(demo.__path__[0]) / "data" / name
    paths = sorted(path for path in top.rglob("*") if path.is_file())
    return {str(path.relative_to(top)): path.read_text(encoding="utf-8") for path in paths}


def _choose_model(environ: Mapping[str, str]) -> tuple[str, str]:
    """Return the default model and the reason for it."""
    from guildhall.models.catalog import auto_model, detected_keys

    keys = ", ".join(detected_keys(environ))
    try:
        model = auto_model(environ)
    except ModelUnusable:
        found = f"Found {keys}; name a model of that provider in guildhall.yaml to use it." if keys else ""
        scripted = "The model is a script for now: it needs no key, and its prices are made up."
        return _SCRIPTED, f"{found or 'No key was found.'} {scripted}"
    return model, f"Found {keys}. The model is {model}."


def _write(path: Path, text: str) -> bool:
    """Return True if the file was created, False if it exists."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        if path.is_symlink() or path.exists():
            return False
        raise Conflict(f"{error.filename} is not a folder", hint="Choose another folder: guild init DIR") from None
    except (OSError, ValueError) as error:
        cause = error.strerror if isinstance(error, OSError) else str(error)
        raise Conflict(f"cannot write {path}: {cause}", hint="Choose another folder: guild init DIR") from None
    return True
