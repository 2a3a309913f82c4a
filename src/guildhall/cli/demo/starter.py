"""Starter files: provide the files that `guild init` writes, with a worker that runs without a key.

Does not write them (see `cli.commands.setup.init`).
"""

from __future__ import annotations

from pathlib import Path

# The worked examples, each with what to do first.
EXAMPLES = {
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
SCRIPTED = "script:scripts/greeter.yaml"
FIRST_TASK = "Greet everybody in notes/team.md"

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

_SCRIPT = """# Stands in for a model: `model: script:scripts/greeter.yaml`. The run, the tools and the record are real.
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
budget: 1.00 # dollars that one command may spend before it asks
"""

_NOTES = """# Team

- Ada, new since Monday
- Grace, back from holiday
"""

_TEST = """# A test: what is asked for, what the model answers, what it must be told on the way, what must come of it.
# `guild test` runs it. From a run of yours: guild script RUN --out tests/NAME.yaml
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
      - sent: "Made greeting.md in the sandbox notes (23 bytes)."
        say: I greeted Ada and Grace.
"""

_README = """# A starter folder for Guildhall

    guild worker ls                                  who is here
    guild run greeter "{task}"
    guild ls                                         what was done
    guild log RUN                                    every step of it
    guild test                                       whether the worker still does what was recorded

`workers/greeter.yaml` is the worker, `guildhall.yaml` says which model it uses, `scripts/greeter.yaml` is a model
made of lines that needs no key: `guild run greeter "..." --override-model {script}` always works.
`guild script RUN --out tests/NAME.yaml` makes a test out of a run of yours.
"""


def example(name: str) -> dict[str, str]:
    """The files of a worked example, by their path in it."""
    top = Path(__file__).parent / "data" / name
    paths = sorted(path for path in top.rglob("*") if path.is_file())
    return {str(path.relative_to(top)): path.read_text(encoding="utf-8") for path in paths}


def files(model: str) -> dict[str, str]:
    """The files by their path in the folder."""
    return {
        "guildhall.yaml": _SETTINGS.format(model=model),
        "workers/greeter.yaml": _WORKER,
        "scripts/greeter.yaml": _SCRIPT,
        "notes/team.md": _NOTES,
        "tests/greeter.yaml": _TEST,
        "README.md": _README.format(task=FIRST_TASK, script=SCRIPTED),
    }
