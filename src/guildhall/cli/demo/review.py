"""Review story: plays `guild demo`, in which a team of agents reviews a change.

The agents vote and ask for approval, are killed with their hall, resume, are replayed, and become a test. A runtime can
be named that executes them. Does not run commands itself (see `cli.demo.story`).
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from guildhall.cli.demo.story import GIT, HallStory
from guildhall.core.errors import GuildError
from guildhall.runtimes.catalog import ROWS

if TYPE_CHECKING:
    from pathlib import Path


class ReviewStory(HallStory):
    """A coordinator, a reviewer and a coder, and a change."""

    def __init__(self, top: Path, runtime: str | None = None) -> None:
        """`runtime` executes the agents, in the place of pydantic."""
        super().__init__(top, "shop", _named(runtime))
        self._runtime = runtime

    def play(self) -> None:
        self.say(
            "Guildhall runs AI workers that are files, and teams of them. You will see three agents review a change: "
            "talk, vote, ask you, be killed with all that they run in, go on, be replayed, and become a test."
        )
        self.say(
            "Everything is real but the model: its answers are read from a file, so no key and no network are needed."
        )
        self.title("A team is a file")
        self.guild("init", ".", "--example", "review")
        if self._runtime is not None:
            self._name_runtime(self._runtime)
        self.show_file("review.yaml")
        self._something_changes()
        run, ask = self._work_together()
        self._are_killed(ask)
        self._go_on(run)
        self._are_replayed(run)
        self._become_a_test(run)
        self.title("That was it")
        self.guild("cost")
        self.guild("ls")
        self.guild("hall", "stop")
        self.say(
            "Make it yours: `guild init my-review --example review`. Every command: `guild help all`. Another story, "
            "of workers that call each other: `guild demo --office`."
        )

    def _name_runtime(self, runtime: str) -> None:
        self.say(
            f"Each agent names its runtime, {runtime}: the real program executes it, in a sandbox whose only way out "
            "are the two doors of the hall. Everything else stays the same."
        )
        file = self.folder / "review.yaml"
        text = file.read_text(encoding="utf-8")
        text = text.replace("{system_prompt:", f"{{runtime: {runtime}, system_prompt:")
        text = text.replace("\n    system_prompt:", f"\n    runtime: {runtime}\n    system_prompt:")
        file.write_text(text, encoding="utf-8")

    def _something_changes(self) -> None:
        self.title("Something changes")
        self.say("A repository, and a change in it that is full of @names: owners, a package, a decorator, an address.")
        for words in (("init", "-q"), ("add", "--all"), ("commit", "-qm", "As it was"), ("apply", "change.patch")):
            self.other("git", *words, env=GIT)
        self.say(
            "The setup of a workflow runs as you, outside every sandbox. So the file has to be trusted as it is first. "
            "You are shown what each agent may do, and:"
        )
        self.guild("trust", "review.yaml", "--yes", since="setup")

    def _work_together(self) -> tuple[str, str]:
        self.title("They work together until they need you")
        self.say(
            "The command starts a hall, a process of its own, which starts one more for each run of an agent. The diff "
            "is in the first message, as a quotation: of all its @names none wakes anybody. Who is mentioned in a "
            "message of their own is woken at once. They read, report, and put to the vote what to do. Then the coder "
            "wants to change a file. That needs your approval, so the team rests and the command ends."
        )
        self.guild("run", "review.yaml", expect=4)
        self.say("How the vote went is in one of their documents; they are files that any editor opens:")
        self.guild("doc", "read", "@review", "decisions.md")
        ask: dict[str, Any] = json.loads(self.quietly("ls", "--json"))["needs_you"]["asks"][0]
        run: str = json.loads(self.quietly("show", ask["run"], "--json"))["root"]
        self.say("The question waits in your inbox, for days if need be:")
        self.guild("show", ask["ask"])
        return run, ask["ask"]

    def _are_killed(self, ask: str) -> None:
        self.title("You say yes, and everything is killed")
        self.say(
            "The answer lets the team go on exactly there. Right after the file is changed we `kill -9` the hall: the "
            "doors, the room and all agents at once."
        )
        with self.started("answer", ask, "yes") as process:
            for line in process.stdout or ():
                self.show_line(line)
                if "← Edit" in line:
                    self.kill()
        self.guild("ls")

    def _go_on(self, run: str) -> None:
        self.title("They go on where the record ends")
        self.say(
            "The next command that needs a hall starts one, and that finds what was lost. No answered model call is "
            "made again, no message is sent twice, the file is not changed a second time."
        )
        self.guild("resume", run)
        logged = [json.loads(line) for line in self.quietly("log", run, "--json").splitlines()]
        entries = [entry for entry in logged if "data" in entry]  # the rest is what was said
        edits = [entry for entry in entries if entry["kind"] == "tool_started" and entry["data"].get("tool") == "Edit"]
        if len(edits) != 1:
            raise GuildError(f"the file was changed {len(edits)} times instead of once")
        runs = len(json.loads(self.quietly("show", run, "--json"))["below"]) + 1
        self.say(f"On record: {len(entries)} steps in {runs} runs of one tree, and one Edit. What came of it:")
        self.guild("doc", "read", "@review", "review.md")
        self.other("git", "diff", "--unified=1", "shop", env=GIT)

    def _are_replayed(self, run: str) -> None:
        self.title("The record can be played again")
        self.say(
            "Offline, the whole workflow: setup, room, votes and every agent, in the recorded order, on the files of "
            "today and the answers on record."
        )
        self.guild("replay", run)
        self.say("Now somebody changes one line of the coder's instructions:")
        prompt = self.folder / "prompts" / "coder.md"
        before = prompt.read_text(encoding="utf-8")
        prompt.write_text(before.replace("as little as will do", "as you like"), encoding="utf-8")
        self.guild("replay", run, expect=1)
        prompt.write_text(before, encoding="utf-8")

    def _become_a_test(self, run: str) -> None:
        self.title("A review becomes a test")
        self.say("Recorded once, it is a test for ever: what the agents are told, what they do, and what comes of it.")
        self.guild("script", run, "--out", "tests/this-review.yaml")
        self.guild("test")


def _named(runtime: str | None) -> dict[str, str]:
    """The variable that says where the program of a runtime is, where the person has set it."""
    variable = ROWS[runtime].variable if runtime else ""
    return {variable: os.environ[variable]} if variable in os.environ else {}
