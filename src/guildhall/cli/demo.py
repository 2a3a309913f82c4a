"""The story of `guild demo`. Every command in it is the real one, run as a person would; only the model is scripted."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from guildhall.core.errors import GuildError
from guildhall.core.paths import HOME_VARIABLE

if TYPE_CHECKING:
    import argparse

_WORKER = """\
name: clerk
description: Adds up the invoices in a folder
instructions: |
  You are a careful clerk. Read every invoice in the sandbox `inbox`,
  then write total.md into the sandbox `outbox`.
model: script:model.yaml            # stands in for an LLM; here you would write anthropic:claude-sonnet-5-5
sandboxes:
  inbox:  {path: ./inbox, mode: ro, allowed_suffixes: [.txt]}
  outbox: {path: ./outbox, mode: rw}
tool_rules:
  fs.write: {approval_required: true}   # nothing is written before a person has said yes
limits: {max_turns: 20, max_budget_usd: 0.50}
"""

_INVOICES = {"ada.txt": "Ada Lovelace: 120.00", "grace.txt": "Grace Hopper: 80.00", "alan.txt": "Alan Turing: 55.50"}

_MODEL = """\
price: {input: 3.0, output: 15.0}
workers:
  clerk:
    - - {call: sandbox_list, with: {sandbox: inbox}}
      - calls:
          - {call: sandbox_read_text, with: {sandbox: inbox, path: ada.txt}}
          - {call: sandbox_read_text, with: {sandbox: inbox, path: grace.txt}}
          - {call: sandbox_read_text, with: {sandbox: inbox, path: alan.txt}}
      - expect: "Alan Turing: 55.50"
        call: sandbox_write_text
        with: {sandbox: outbox, path: total.md, content: "3 invoices, 255.50 in all.\\n"}
      - {sleep: 1.5, call: sandbox_read_text, with: {sandbox: outbox, path: total.md}}
      - {expect: "255.50", say: "Done: 3 invoices, 255.50 in all. The total is in outbox/total.md."}
"""


def main(args: argparse.Namespace) -> int:
    """Tells the story in a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="guild-demo-") as folder:
        _Story(Path(folder).resolve()).tell()
    return 0


class _Story:
    def __init__(self, folder: Path) -> None:
        self._folder = folder / "office"
        self._env = {**os.environ, HOME_VARIABLE: str(folder / "home")}
        self._colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        self._chapter = 0

    def tell(self) -> None:
        self._say(
            "Guildhall runs AI workers that are files. You will see one work, ask, be killed, go on, and be replayed."
        )
        self._say(
            "Everything is real but the model: its answers are read from a file, so no key and no network are needed."
        )
        self._write_files()
        self._title("A worker is a file")
        self._say("It says how to work, which folders it sees, and what needs your approval.")
        self._show((self._folder / "workers" / "clerk.yaml").read_text())
        ask = self._runs_until_it_asks()
        run = self._is_killed(ask)
        self._goes_on(run)
        self._is_replayed(run)
        self._title("That was it")
        self._say("Make your own: `guild init my-guild`, then `guild run greeter`. Every command: `guild help all`.")

    def _write_files(self) -> None:
        for name in ("workers", "inbox", "outbox"):
            (self._folder / name).mkdir(parents=True)
        (self._folder / "workers" / "clerk.yaml").write_text(_WORKER)
        (self._folder / "model.yaml").write_text(_MODEL)
        for name, text in _INVOICES.items():
            (self._folder / "inbox" / name).write_text(text + "\n")

    def _runs_until_it_asks(self) -> str:
        self._title("It works until it needs you")
        self._say("What it declares is allowed. Writing demands approval, so that call is parked and the command ends.")
        self._guild("run", "clerk", "Add up the invoices of this month", expect=4)
        needs_you = json.loads(self._quietly("ls", "--json"))["needs_you"]
        ask: str = needs_you["asks"][0]["ask"]
        self._say("The question waits in your inbox, for days if need be, with every detail of the call:")
        self._guild("show", ask)
        return ask

    def _is_killed(self, ask: str) -> str:
        self._title("You say yes, and the process is killed")
        self._say(
            "The answer continues the run exactly there. Right after the file is written we `kill -9` the process."
        )
        with self._started("answer", ask, "yes") as process:
            for line in process.stdout or ():
                self._show(line)
                if line.startswith("← sandbox_write_text"):
                    process.send_signal(signal.SIGKILL)
                    break
            process.wait()
        self._show("Killed")
        self._guild("ls")
        return json.loads(self._quietly("show", ask, "--json"))["run"]

    def _goes_on(self, run: str) -> None:
        self._title("It goes on where the record ends")
        self._say(
            "No answered model call is made again, no finished tool call is repeated: the write is not done twice."
        )
        self._guild("resume", run)
        entries = [json.loads(line) for line in self._quietly("log", run, "--json").splitlines()]
        writes = [e for e in entries if e["kind"] == "tool_started" and e["data"]["tool"] == "sandbox_write_text"]
        self._say(f"On record: {len(entries)} steps, {len(writes)} write. The file says:")
        self._show((self._folder / "outbox" / "total.md").read_text())

    def _is_replayed(self, run: str) -> None:
        self._title("The record can be played again")
        self._say(
            "Offline: prompt, rules, gate and schema as they are today, on the recorded answers. Nothing is touched."
        )
        self._guild("replay", run)
        self._say("Now somebody changes one line of the worker's instructions:")
        worker = self._folder / "workers" / "clerk.yaml"
        worker.write_text(worker.read_text().replace("a careful clerk", "a quick clerk"))
        self._guild("replay", run, expect=1)
        self._guild("cost")

    # telling

    def _title(self, text: str) -> None:
        self._chapter += 1
        line = f"{self._chapter}. {text}"
        self._out(f"\n\033[1m{line}\033[0m" if self._colour else f"\n{line}")

    def _say(self, text: str) -> None:
        self._out(textwrap.fill(text, 100))

    def _show(self, text: str) -> None:
        self._out(textwrap.indent(text.rstrip("\n"), "    "))

    def _out(self, text: str) -> None:
        print(text, flush=True)  # noqa: T201 - this is the command's result

    # doing

    def _guild(self, *words: str, expect: int = 0) -> None:
        """Runs a command as the reader would, and shows all that it prints."""
        with self._started(*words) as process:
            for line in process.stdout or ():
                self._show(line)
        if process.returncode != expect:
            raise GuildError(
                f"`guild {' '.join(words)}` ended with {process.returncode} instead of {expect}",
                hint="`guild doctor` says what is missing here.",
            )

    def _started(self, *words: str) -> subprocess.Popen[str]:
        self._show(f"$ guild {shlex.join(words)}")
        return subprocess.Popen(
            [sys.executable, "-m", "guildhall", *words],
            cwd=self._folder,
            env=self._env,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def _quietly(self, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "guildhall", *words],
            cwd=self._folder,
            env=self._env,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            check=True,
        )
        return done.stdout
