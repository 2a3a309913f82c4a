"""Office story: plays `guild demo --office`, in which a worker calls other workers.

The worker asks for approval, is killed, resumes, remembers, is replayed, and becomes a test. Does not run commands
itself (see `cli.demo.story`).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from guildhall.cli.demo.story import HallStory

if TYPE_CHECKING:
    from pathlib import Path


class OfficeStory(HallStory):
    """A chief, and readers of its invoices."""

    repository = False

    def __init__(self, top: Path) -> None:
        super().__init__(top, "office")

    def play(self) -> None:
        self.say(
            "Guildhall runs AI workers that are files. You will see them share work, ask, be killed, go on, remember, "
            "and be replayed."
        )
        self.say(
            "Everything is real but the model: its answers are read from a file, so no key and no network are needed."
        )
        self.title("A worker is a file")
        self.guild("init", ".", "--example", "office")
        self.say("It says how to work, which folders it sees, whom it may call, and what needs your approval.")
        self.show((self.folder / "workers" / "chief.yaml").read_text())
        ask = self._share_the_work()
        run = self._is_killed(ask)
        self._goes_on(run)
        self._remembers()
        self._is_replayed(run)
        self._becomes_a_test(run)
        self.title("That was it")
        self.guild("cost")
        self.guild("hall", "stop")
        self.say("Make your own: `guild init my-guild`, then `guild run greeter`. Every command: `guild help all`.")

    def _share_the_work(self) -> str:
        self.title("It calls others, side by side, until it needs you")
        self.say(
            "The chief has a reader read each invoice: three runs at once, each with its own tools, its own limits "
            "and an output schema. Then it wants a worker that is not there yet, and writes one. That needs your "
            "approval, so the call is parked and the command ends."
        )
        self.guild("run", "chief", "Add up the invoices of this month", expect=4)
        needs_you = json.loads(self.quietly("ls", "--json"))["needs_you"]
        ask: str = needs_you["asks"][0]["ask"]
        self.say("The question waits in your inbox, for days if need be. You see the new worker whole:")
        self.guild("show", ask)
        return ask

    def _is_killed(self, ask: str) -> str:
        self.title("You say yes, and everything is killed")
        self.say(
            "The answer continues the run exactly there. Right after the new worker is made we `kill -9` the hall, and "
            "with it all that runs."
        )
        with self.started("answer", ask, "yes") as process:
            for line in process.stdout or ():
                self.show_line(line)
                if line.startswith("← worker_create"):
                    self.kill()
        self.guild("ls")
        return json.loads(self.quietly("show", ask, "--json"))["run"]

    def _goes_on(self, run: str) -> None:
        self.title("It goes on where the record ends")
        self.say(
            "No answered model call is made again, no finished call is repeated: no invoice is read twice, and the new "
            "worker is there. The chief calls it, and keeps something in mind for next time."
        )
        self.guild("resume", run)
        shown = json.loads(self.quietly("show", run, "--json"))
        entries = [json.loads(line) for line in self.quietly("log", run, "--json").splitlines()]
        self.say(f"On record: {len(entries)} steps in {len(shown['below']) + 1} runs of one tree. The file says:")
        self.show((self.folder / "outbox" / "total.md").read_text())

    def _remembers(self) -> None:
        self.title("The next run knows it")
        self.say("Memory is plain files, with a log of who wrote what. The next run has it at the end of its prompt.")
        self.guild("memory", "ls", "--worker", "chief")
        self.guild("run", "chief", "Who has to be reminded?", "--override-model", "script:next-time.yaml")

    def _is_replayed(self, run: str) -> None:
        self.title("The record can be played again")
        self.say(
            "Offline, the whole tree: prompts, rules, gate and schemas as they are today, on the recorded answers."
        )
        self.guild("replay", run)
        self.say("Now somebody changes one line of the reader's instructions:")
        worker = self.folder / "workers" / "reader.yaml"
        before = worker.read_text()
        worker.write_text(before.replace("a careful reader", "a quick reader"))
        self.guild("replay", run, expect=1)
        worker.write_text(before)

    def _becomes_a_test(self, run: str) -> None:
        self.title("A run becomes a test")
        self.say("Recorded once, it is a test for ever: what the workers are told, what they do, and what comes out.")
        self.guild("script", run, "--out", "tests/this-run.yaml")
        self.guild("test")
