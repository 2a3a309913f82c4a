"""`guild init [DIR]`: writes a starter folder with a worker that runs without a key, or an example.

The files of the examples are in `cli/demo/data`. Does not run anything.

Invariant: an existing file is never overwritten.
"""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from guildhall.cli import demo
from guildhall.cli.command import JSON, Context, argument, command
from guildhall.core.errors import Conflict, ModelUnusable

if TYPE_CHECKING:
    from collections.abc import Mapping

_CLIS = ("claude", "codex")
# The examples, each with the commands that come first.
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

_WORKER = """# A worker is a file. Every field: docs/worker-file.md.
name: greeter
description: Reads the notes and writes a greeting
instructions: |
  You greet people. Read team.md in the sandbox `notes` first, then write one friendly line for each
  person into greeting.md in the same sandbox. Finish with one sentence about what you did.

# The only folder that the worker can see, by the name that it uses.
sandboxes:
  notes: {path: ./notes, mode: rw, allowed_suffixes: [.md]}

# Take away the `#` to be asked before anything is written.
# tool_rules:
#   fs.write: {approval_required: true}

limits: {max_turns: 20, max_budget_usd: 0.50}
"""

_SCRIPT = """# Replaces a model: `model: script:scripts/greeter.yaml`. The run, the tools and the journal are real.
price: {input: 3.0, output: 15.0} # dollars for a million tokens, made up
workers:
  greeter:
    - - call: sandbox_read_text
        with: {sandbox: notes, path: team.md}
      - call: sandbox_write_text
        with:
          sandbox: notes
          path: greeting.md
          content: |
            Hello Ada, good to have you here!
            Hello Grace, welcome back!
      - say: I greeted Ada and Grace in notes/greeting.md.
repeat: true
"""

_SETTINGS = """# Settings for what is run in this folder. They can only narrow those in config.yaml of your own home.
# The model of workers that name none: provider:model, `auto` (what your keys allow), or a script.
model: {model}
budget: 1.00 # dollars; a command asks before it spends more
"""

_NOTES = """# Team

- Ada, new since Monday
- Grace, back from holiday
"""

_TEST = """# A test: the input, the answers of the model, what the model must be sent, and the expected result.
# `guild test` runs it. Record another one: guild test add RUN
test:
  worker: greeter
  input: Greet everybody in notes/team.md
  files: # as they are when it begins; null: not there
    notes/team.md: |
      - Ada
      - Grace
    notes/greeting.md: null
  status: completed
  output: I greeted Ada and Grace.
price: {input: 3.0, output: 15.0}
workers:
  greeter:
    - - call: sandbox_read_text
        with: {sandbox: notes, path: team.md}
      - sent: |
          - Ada
          - Grace
        call: sandbox_write_text
        with: {sandbox: notes, path: greeting.md, content: "Hello Ada! Hello Grace!"}
      - sent: "Created greeting.md in the sandbox notes (23 bytes)."
        say: I greeted Ada and Grace.
"""

_README = """# A starter folder for Guildhall

    guild worker ls                                  list the workers
    guild run greeter "{task}"
    guild ls                                         list open asks, active work and results
    guild log last                                   print every recorded step
    guild test                                       run the recorded tests

`workers/greeter.yaml` is the worker, `guildhall.yaml` says which model it uses, `scripts/greeter.yaml` is a model
made of lines that needs no key: `guild run greeter "..." --override-model {script}` always works.
`guild test add RUN` turns a run into a test.
"""


@command(
    argument("dir", metavar="DIR", nargs="?", default=".", help="the folder, which is created if it does not exist"),
    argument("--example", choices=_EXAMPLES, metavar="NAME", help=f"a worked example instead: {', '.join(_EXAMPLES)}"),
    JSON,
)
def init(ctx: Context) -> None:
    folder, name, screen = Path(ctx.args.dir).expanduser(), ctx.args.example, ctx.screen
    if name:
        model, why = None, "The model is a script: it needs no key, and its prices are made up."
        texts, steps = _example(name), list(_EXAMPLES[name])
    else:
        model, why = _model(os.environ)
        texts = {
            "guildhall.yaml": _SETTINGS.format(model=model),
            "workers/greeter.yaml": _WORKER,
            "scripts/greeter.yaml": _SCRIPT,
            "notes/team.md": _NOTES,
            "tests/greeter.yaml": _TEST,
            "README.md": _README.format(task=_FIRST_TASK, script=_SCRIPTED),
        }
        steps = ["guild worker ls", f"guild run greeter {shlex.quote(_FIRST_TASK)}", "guild ls"]
    if folder.absolute() != Path.cwd():
        steps.insert(0, f"cd {shlex.quote(str(folder))}")
    made = [path for path, text in texts.items() if _write(folder / path, text)]
    kept = [path for path in texts if path not in made]
    if ctx.as_json:
        screen.json({"dir": str(folder.absolute()), "made": made, "kept": kept, "model": model, "next": steps})
        return
    for path in made:
        screen.result(f"Created {folder / path}")
    for path in kept:
        screen.result(f"Kept    {folder / path} (it exists)")
    screen.note(f"{why} The existing guildhall.yaml is not changed." if "guildhall.yaml" in kept else why)
    if found := [name for name in _CLIS if shutil.which(name)]:
        screen.note(f"Found on this machine: {', '.join(found)}.")
    screen.note("Next:\n" + "\n".join(f"  {step}" for step in steps))


def _example(name: str) -> dict[str, str]:
    """Return the files of an example by their path."""
    top = Path(demo.__path__[0]) / "data" / name
    paths = sorted(path for path in top.rglob("*") if path.is_file())
    return {str(path.relative_to(top)): path.read_text(encoding="utf-8") for path in paths}


def _model(environ: Mapping[str, str]) -> tuple[str, str]:
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
        said = error.strerror if isinstance(error, OSError) else str(error)
        raise Conflict(f"cannot write {path}: {said}", hint="Choose another folder: guild init DIR") from None
    return True
