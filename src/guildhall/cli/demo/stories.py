"""Stories: `guild demo` plays one of them, with real `guild` commands in a folder and a home of their own.

`ReviewStory` is the default, `GuildStory` is `--guild`, `OfficeStory` is `--office`. Everything but the model is real.
The hall of a story can be killed and is stopped at the end. Does not create or delete the folder (see
`cli.commands.setup.demo`).
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
from abc import ABC, abstractmethod
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from guildhall.core.errors import GuildError
from guildhall.core.paths import HOME_VARIABLE, Home
from guildhall.hall.client.discovery import find_hall, find_hall_pid, stop
from guildhall.runtimes.catalog import ROWS

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence
    from pathlib import Path

_GUILD = (sys.executable, "-m", "guildhall")
_INDENT = "    "
_OWN = ("GUILDHALL_", "GIT_")  # variables that the user has set for other work are not part of the story
# The git settings of the user have no effect on the story.
_GIT = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@shop.example",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@shop.example",
}


class Story(ABC):
    """A story in its own folder, with its own home and hall."""

    name = "shop"  # of its folder
    needs_git = True
    answers = "a file"  # where the model reads them
    opening: str
    closing: str
    last_commands: Sequence[str] = ("cost", "hall stop")

    def __init__(self, top: Path, more: Mapping[str, str] | None = None) -> None:
        """`top`: an empty folder. `more`: variables of the commands."""
        self.home = Home(top / "home")
        self.folder = top / self.name
        self.folder.mkdir()
        kept = {key: value for key, value in os.environ.items() if not key.startswith(_OWN)}
        self._env = {**kept, HOME_VARIABLE: str(self.home.path), **(more or {})}
        self._colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        self._width = max(120, shutil.get_terminal_size((120, 24)).columns) - len(_INDENT)
        self._chapter = 0

    def tell(self) -> None:
        """Play the story to its end."""
        if self.needs_git and shutil.which("git") is None:
            raise GuildError("this plays in a git repository, and there is no git here", hint="guild demo --office")
        try:
            self.say(self.opening)
            self.say(
                f"Everything is real but the model: its answers are read from {self.answers}, so no key and no network "
                "are needed."
            )
            self.play()
            self.title("That was it")
            for words in self.last_commands:
                self.guild(*words.split())
            self.say(self.closing)
        finally:
            if (pid := find_hall_pid(self.home)) is not None:
                stop(pid)

    @abstractmethod
    def play(self) -> None:
        """Play the scenes of the story."""

    # printing

    def title(self, text: str) -> None:
        self._chapter += 1
        line = f"{self._chapter}. {text}"
        self._out(f"\n\033[1m{line}\033[0m" if self._colour else f"\n{line}")

    def say(self, text: str) -> None:
        self._out(textwrap.fill(text, 100))

    def show(self, text: str) -> None:
        self._out(textwrap.indent(text.rstrip("\n"), _INDENT))

    def show_line(self, line: str) -> None:
        """Print a line of a running command, cut to the width of the screen."""
        text = line.rstrip("\n")
        self.show(text if len(text) <= self._width else text[: self._width - 1] + "…")

    def show_file(self, path: str) -> None:
        self.show(f"$ cat {path}")
        self.show((self.folder / path).read_text(encoding="utf-8"))

    def _out(self, text: str) -> None:
        print(text, flush=True)  # noqa: T201 - this is the command's result

    # commands

    def guild(self, *words: str, expect: int = 0, since: str = "") -> None:
        """Run a command and print its output, or only the part that begins with a given line."""
        self.show(f"$ guild {shlex.join(words)}")
        with self._process([*_GUILD, *words]) as process:
            skipped: list[str] = []
            for line in process.stdout or ():
                if since and not line.startswith(since):
                    skipped.append(line)
                    continue
                if skipped:
                    self.show("...")
                    skipped.clear()
                since = ""
                self.show_line(line)
        for line in skipped:  # the command did not print the expected line
            self.show(line)
        self._check(f"guild {shlex.join(words)}", process.returncode, expect)

    def guild_killed(self, marker: str, *words: str, before: Callable[[], None] | None = None) -> None:
        """Run a command, and kill its hall when the command prints `marker`. `before` is called first."""
        killed = False
        self.show(f"$ guild {shlex.join(words)}")
        with self._process([*_GUILD, *words]) as process:
            for line in process.stdout or ():
                self.show_line(line)
                if killed or marker not in line:
                    continue
                if before is not None:
                    before()
                if (hall := find_hall(self.home)) is not None:
                    self.show(f"$ kill -9 {hall.pid}")
                    os.kill(hall.pid, signal.SIGKILL)
                    killed = True

    def replay(self, run: str, whose: str, path: str, old: str, new: str) -> None:
        """Replay a run, then once more after a change of a worker's instructions in `path`, which is undone."""
        self.guild("replay", run)
        self.say(f"Now somebody changes one line of the {whose}'s instructions:")
        file = self.folder / path
        before = file.read_text(encoding="utf-8")
        file.write_text(before.replace(old, new), encoding="utf-8")
        self.guild("replay", run, expect=1)
        file.write_text(before, encoding="utf-8")

    def data(self, *words: str) -> Any:
        """Run a command without printing it, and return the JSON that it prints."""
        return json.loads(self._quietly([*_GUILD, *words, "--json"]))

    def entries(self, run: str) -> list[dict[str, Any]]:
        """Return the log of a run."""
        return [json.loads(line) for line in self._quietly([*_GUILD, "log", run, "--json"]).splitlines()]

    def git(self, *words: str) -> None:
        """Run a git command and print its output."""
        self.show(f"$ {shlex.join(['git', *words])}")
        out = self.git_output(*words)
        if out.strip():
            self.show(out)

    def git_output(self, *words: str) -> str:
        """Run a git command without printing it, and return its output."""
        return self._quietly(["git", *words], stderr=subprocess.STDOUT, env=_GIT)

    def _quietly(self, words: Sequence[str], *, stderr: int | None = None, env: Mapping[str, str] | None = None) -> str:
        with self._process(words, stderr=stderr, env=env) as process:
            out, _ = process.communicate()
        self._check(shlex.join(words).replace(shlex.join(_GUILD), "guild"), process.returncode, 0)
        return out

    @contextmanager
    def _process(
        self, words: Sequence[str], *, stderr: int | None = subprocess.STDOUT, env: Mapping[str, str] | None = None
    ) -> Generator[subprocess.Popen[str]]:
        with subprocess.Popen(
            words,
            cwd=self.folder,
            env={**self._env, **(env or {})},
            text=True,
            encoding="utf-8",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
        ) as process:
            try:
                yield process
            except BaseException:  # the story breaks off: do not wait for the command
                process.kill()
                raise

    def _check(self, command: str, code: int, expect: int) -> None:
        if code != expect:
            raise GuildError(
                f"`{command}` ended with {code} instead of {expect}", hint="`guild doctor` says what is missing here."
            )


class GuildStory(Story):
    """A manager commissions work in a git repository. A commission fails, another conflicts with the user's changes.

    The workers never change the user's branch or files.
    """

    answers = "files"
    opening = (
        "Guildhall runs AI workers that are files. You will see a manager commission two of them with work in a "
        "git repository: one fails and is tried anew, one conflicts with what you did meanwhile, all of it is "
        "killed and goes on, and what is done waits on a branch. Your own branch and your files stay yours."
    )
    closing = 'Make it yours: `guild project add` in a repository of yours, then `guild run manager "..."`.'

    def play(self) -> None:
        self._a_project()
        design, code = self._are_commissioned()
        self._is_tried_anew(design)
        self._conflicts()
        self._goes_on(code)
        self._is_reviewed()

    def _a_project(self) -> None:
        self.title("A repository becomes a project")
        self.guild("init", ".", "--example", "guild")
        for words in (("init", "-q", "-b", "main"), ("add", "--all"), ("commit", "-qm", "The shop")):
            self.git(*words)
        self.guild("project", "add", ".")

    def _are_commissioned(self) -> tuple[str, str]:
        self.title("The manager commissions the work")
        self.say(
            "The manager comes with Guildhall. It does no work itself: it has a toolbox that no other worker has, to "
            "commission, wait, ask for meetings, and put work up for review. It acts first, and you review after."
        )
        self.guild("run", "manager", "We need a discount in the cart. Have it thought through first.")
        self.say(
            "You see all that it has commissioned, and can change it or call it off. The code waits for the design:"
        )
        self.guild("ls", "commissions")
        made = {one["worker"]: str(one["commission"]) for one in self._commissions()}
        return made["writer"], made["coder"]

    def _commissions(self) -> list[dict[str, Any]]:
        return self.data("ls", "commissions")["commissions"]

    def _is_tried_anew(self, design: str) -> None:
        self.title("One has failed, and is tried anew")
        self.say("Its work so far is kept on its branch. You give it more turns, and dispatch it again:")
        self.guild("edit", design, "--max-turns", "10")
        self.guild("retry", design, "--wait")
        self.git("log", "--oneline", "claude/main")
        self.say("What it wrote is on claude/main, the branch on which the guild gathers its work. In your folder:")
        self.git("status", "--short", "--branch")

    def _conflicts(self) -> None:
        self.title("You go on yourself, and everything is killed")
        self.say(
            "The manager has the code written. While the coder works, in a checkout of its own, you commit a change to "
            "the same lines. Then we `kill -9` the hall: the doors, the manager and the coder at once."
        )
        words = ("run", "manager", "The design is there: go on.", "--model", "script:answers/go-on.yaml")
        self.guild_killed("→ wait_for_commissions", *words, before=self._change_cart)
        self.guild("ls")

    def _change_cart(self) -> None:
        cart = self.folder / "src" / "cart.js"
        text = cart.read_text(encoding="utf-8")
        cart.write_text(text.replace("total(prices) {", "total(prices = []) {"), encoding="utf-8")
        self.git("commit", "-qam", "An empty cart costs nothing")

    def _goes_on(self, code: str) -> None:
        self.title("They go on where the record ends")
        self.say(
            "The next command that needs a hall starts one. Both go on by themselves: no answered model call is made "
            "again, nothing is commissioned twice. But the work does not fit what you have now: nothing is merged, its "
            "branch is kept, and you are asked."
        )
        waiting = self.data("ls")["needs_you"]["runs"]
        self.guild("resume", next(one["run"] for one in waiting if one["worker"] == "manager"))
        self.guild("ls")
        asks = {one["kind"]: one["ask"] for one in self.data("ls")["needs_you"]["asks"]}
        self.say(
            "The coder would talk with you about it. You need no meeting: you have it done anew, on what you have now."
        )
        if "meeting" in asks:
            self.guild("answer", asks["meeting"], "no")
        self.guild("answer", asks["conflict"], "redispatch")
        self.guild("wait", code)
        attempts = {one["worker"]: one["attempt"] for one in self._commissions()}
        if attempts != {"writer": 2, "coder": 2}:
            raise GuildError(f"the commissions were tried {attempts} times instead of twice each")

    def _is_reviewed(self) -> None:
        self.title("It waits for your review")
        before = self._theirs()
        self.guild("run", "manager", "Put it up for review.", "--model", "script:answers/review.yaml")
        self.say("There is no remote here, so it is a branch with a summary; with one and `gh` it is a pull request.")
        branch = self.git_output("for-each-ref", "--format=%(refname:short)", "refs/heads/claude/review/").strip()
        self.git("diff", "--stat", f"main...{branch}")
        self.git("diff", f"main...{branch}", "--", "src")
        if self._theirs() != before:
            raise GuildError("something of the user's has changed")
        self.say("Until here your branch, your index and your files are as you left them. Only you merge:")
        self.git("status", "--short", "--branch")
        self.git("merge", "--ff-only", "-q", branch)
        self.show_file("src/cart.js")

    def _theirs(self) -> tuple[str, str, bytes]:
        """Return the user's branch, its differences, and the file that others work on."""
        status = self.git_output("--no-optional-locks", "status", "--porcelain")
        return self.git_output("rev-parse", "main"), status, (self.folder / "src" / "cart.js").read_bytes()


class OfficeStory(Story):
    """A chief calls readers of its invoices, asks for approval, is killed, resumes, and becomes a test."""

    name = "office"
    needs_git = False
    opening = (
        "Guildhall runs AI workers that are files. You will see them share work, ask, be killed, go on, remember, "
        "and be replayed."
    )
    closing = "Make your own: `guild init my-guild`, then `guild run greeter`. Every command: `guild help all`."

    def play(self) -> None:
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

    def _share_the_work(self) -> str:
        self.title("It calls others, side by side, until it needs you")
        self.say(
            "The chief has a reader read each invoice: three runs at once, each with its own tools, its own limits "
            "and an output schema. Then it wants a worker that is not there yet, and writes one. That needs your "
            "approval, so the call is paused and the command ends."
        )
        self.guild("run", "chief", "Add up the invoices of this month", expect=4)
        needs_you = self.data("ls")["needs_you"]
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
        self.guild_killed("← worker_create", "answer", ask, "yes")
        self.guild("ls")
        return self.data("show", ask)["run"]

    def _goes_on(self, run: str) -> None:
        self.title("It goes on where the record ends")
        self.say(
            "No answered model call is made again, no finished call is repeated: no invoice is read twice, and the new "
            "worker is there. The chief calls it, and keeps something in mind for next time."
        )
        self.guild("resume", run)
        shown = self.data("show", run)
        self.say(
            f"On record: {len(self.entries(run))} steps in {len(shown['below']) + 1} runs of one tree. The file says:"
        )
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
        self.replay(run, "reader", "workers/reader.yaml", "a careful reader", "a quick reader")

    def _becomes_a_test(self, run: str) -> None:
        self.title("A run becomes a test")
        self.say("Recorded once, it is a test for ever: what the workers are told, what they do, and what comes out.")
        self.guild("script", run, "--out", "tests/this-run.yaml")
        self.guild("test")


class ReviewStory(Story):
    """A coordinator, a reviewer and a coder review a change, vote, ask for approval, are killed and resume."""

    opening = (
        "Guildhall runs AI workers that are files, and teams of them. You will see three agents review a change: "
        "talk, vote, ask you, be killed with all that they run in, go on, be replayed, and become a test."
    )
    closing = (
        "Make it yours: `guild init my-review --example review`. Every command: `guild help all`. Another story, "
        "of workers that call each other: `guild demo --office`."
    )
    last_commands = ("cost", "ls", "hall stop")

    def __init__(self, top: Path, runtime: str | None = None) -> None:
        """`runtime`: executes the agents instead of pydantic. Its commands get the variable that names its program."""
        variable = ROWS[runtime].variable if runtime else ""
        super().__init__(top, {variable: os.environ[variable]} if variable in os.environ else {})
        self._runtime = runtime

    def play(self) -> None:
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
            self.git(*words)
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
        ask: dict[str, Any] = self.data("ls")["needs_you"]["asks"][0]
        run: str = self.data("show", ask["run"])["root"]
        self.say("The question waits in your inbox, for days if need be:")
        self.guild("show", ask["ask"])
        return run, ask["ask"]

    def _are_killed(self, ask: str) -> None:
        self.title("You say yes, and everything is killed")
        self.say(
            "The answer lets the team go on exactly there. Right after the file is changed we `kill -9` the hall: the "
            "doors, the room and all agents at once."
        )
        self.guild_killed("← Edit", "answer", ask, "yes")
        self.guild("ls")

    def _go_on(self, run: str) -> None:
        self.title("They go on where the record ends")
        self.say(
            "The next command that needs a hall starts one, and that finds the interrupted runs. No answered model "
            "call is made again, no message is sent twice, the file is not changed a second time."
        )
        self.guild("resume", run)
        entries = [entry for entry in self.entries(run) if "data" in entry]  # the others are messages
        edits = [entry for entry in entries if entry["kind"] == "tool_started" and entry["data"].get("tool") == "Edit"]
        if len(edits) != 1:
            raise GuildError(f"the file was changed {len(edits)} times instead of once")
        runs = len(self.data("show", run)["below"]) + 1
        self.say(f"On record: {len(entries)} steps in {runs} runs of one tree, and one Edit. What came of it:")
        self.guild("doc", "read", "@review", "review.md")
        self.git("diff", "--unified=1", "shop")

    def _are_replayed(self, run: str) -> None:
        self.title("The record can be played again")
        self.say(
            "Offline, the whole workflow: setup, room, votes and every agent, in the recorded order, on the files of "
            "today and the answers on record."
        )
        self.replay(run, "coder", "prompts/coder.md", "as little as will do", "as you like")

    def _become_a_test(self, run: str) -> None:
        self.title("A review becomes a test")
        self.say("Recorded once, it is a test for ever: what the agents are told, what they do, and what comes of it.")
        self.guild("script", run, "--out", "tests/this-review.yaml")
        self.guild("test")
