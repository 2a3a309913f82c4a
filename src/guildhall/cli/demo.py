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
from guildhall.hall.start import EMBEDDED_VARIABLE

if TYPE_CHECKING:
    import argparse


def main(args: argparse.Namespace) -> int:
    """Tells the story in a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="guild-demo-") as folder:
        _Story(Path(folder).resolve()).tell()
    return 0


class _Story:
    def __init__(self, folder: Path) -> None:
        self._folder = folder / "office"
        self._folder.mkdir()
        # Each command is a hall of its own, so that nothing is left running when the story is told.
        self._env = {**os.environ, HOME_VARIABLE: str(folder / "home"), EMBEDDED_VARIABLE: "1"}
        self._colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        self._chapter = 0

    def tell(self) -> None:
        self._say(
            "Guildhall runs AI workers that are files. You will see them share work, ask, be killed, go on, remember, "
            "and be replayed."
        )
        self._say(
            "Everything is real but the model: its answers are read from a file, so no key and no network are needed."
        )
        self._title("A worker is a file")
        self._guild("init", ".", "--example", "office")
        self._say("It says how to work, which folders it sees, whom it may call, and what needs your approval.")
        self._show((self._folder / "workers" / "chief.yaml").read_text())
        ask = self._share_the_work()
        run = self._is_killed(ask)
        self._goes_on(run)
        self._remembers()
        self._is_replayed(run)
        self._becomes_a_test(run)
        self._title("That was it")
        self._guild("cost")
        self._say("Make your own: `guild init my-guild`, then `guild run greeter`. Every command: `guild help all`.")

    def _share_the_work(self) -> str:
        self._title("It calls others, side by side, until it needs you")
        self._say(
            "The chief has a reader read each invoice: three runs at once, each with its own tools, its own limits "
            "and an output schema. Then it wants a worker that is not there yet, and writes one. That needs your "
            "approval, so the call is parked and the command ends."
        )
        self._guild("run", "chief", "Add up the invoices of this month", expect=4)
        needs_you = json.loads(self._quietly("ls", "--json"))["needs_you"]
        ask: str = needs_you["asks"][0]["ask"]
        self._say("The question waits in your inbox, for days if need be. You see the new worker whole:")
        self._guild("show", ask)
        return ask

    def _is_killed(self, ask: str) -> str:
        self._title("You say yes, and the process is killed")
        self._say(
            "The answer continues the run exactly there. Right after the new worker is made we `kill -9` the process."
        )
        with self._started("answer", ask, "yes") as process:
            for line in process.stdout or ():
                self._show(line)
                if line.startswith("← worker_create"):
                    process.send_signal(signal.SIGKILL)
                    break
            process.wait()
        self._show("Killed")
        self._guild("ls")
        return json.loads(self._quietly("show", ask, "--json"))["run"]

    def _goes_on(self, run: str) -> None:
        self._title("It goes on where the record ends")
        self._say(
            "No answered model call is made again, no finished call is repeated: no invoice is read twice, and the new "
            "worker is there. The chief calls it, and keeps something in mind for next time."
        )
        self._guild("resume", run)
        shown = json.loads(self._quietly("show", run, "--json"))
        entries = [json.loads(line) for line in self._quietly("log", run, "--json").splitlines()]
        self._say(f"On record: {len(entries)} steps in {len(shown['below']) + 1} runs of one tree. The file says:")
        self._show((self._folder / "outbox" / "total.md").read_text())

    def _remembers(self) -> None:
        self._title("The next run knows it")
        self._say("Memory is plain files, on record who wrote what. It is the last block of the next run's prompt.")
        self._guild("memory", "ls", "--worker", "chief")
        self._guild("run", "chief", "Who has to be reminded?", "--override-model", "script:next-time.yaml")

    def _is_replayed(self, run: str) -> None:
        self._title("The record can be played again")
        self._say(
            "Offline, the whole tree: prompts, rules, gate and schemas as they are today, on the recorded answers."
        )
        self._guild("replay", run)
        self._say("Now somebody changes one line of the reader's instructions:")
        worker = self._folder / "workers" / "reader.yaml"
        before = worker.read_text()
        worker.write_text(before.replace("a careful reader", "a quick reader"))
        self._guild("replay", run, expect=1)
        worker.write_text(before)

    def _becomes_a_test(self, run: str) -> None:
        self._title("A run becomes a test")
        self._say("Recorded once, it is a test for ever: what the workers are told, what they do, and what comes out.")
        self._guild("script", run, "--out", "tests/this-run.yaml")
        self._guild("test")

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
