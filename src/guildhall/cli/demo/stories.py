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
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from guildhall.core.errors import GuildError
from guildhall.core.paths import HOME_VARIABLE, Home
from guildhall.hall.client.discovery import find_hall, find_hall_pid, stop
from guildhall.runtimes.catalog import RUNTIMES

if TYPE_CHECKING:
    from pathlib import Path

_GUILD = (sys.executable, "-m", "guildhall")
_INDENT = "    "
_REPORT_HINT = "This is an error in Guildhall. Please report it, with the output of the demo."
_REMOVED_PREFIXES = ("GUILDHALL_", "GIT_")  # of variables that the user has set for other work
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

    def __init__(self, top: Path, variables: Mapping[str, str] | None = None) -> None:
        """`top`: an empty folder. `variables`: additional variables of the commands."""
        self.home = Home(top / "home")
        self.folder = top / self.name
        self.folder.mkdir()
        kept = {key: value for key, value in os.environ.items() if not key.startswith(_REMOVED_PREFIXES)}
        self._env = {**kept, HOME_VARIABLE: str(self.home.path), **(variables or {})}
        self._has_colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        self._width = max(120, shutil.get_terminal_size((120, 24)).columns) - len(_INDENT)
        self._chapter = 0

    def tell(self) -> None:
        """Play the story to its end."""
        if self.needs_git and shutil.which("git") is None:
            raise GuildError("cannot run this demo: git is not installed", hint="Install git, or: guild demo --office")
        try:
            self.say(self.opening)
            self.say(
                f"Everything is real but the model. Its answers are read from {self.answers}, so no key and no network "
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
        self._out(f"\n\033[1m{line}\033[0m" if self._has_colour else f"\n{line}")

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
        self.say(f"Now one line of the {whose}'s instructions changes:")
        file = self.folder / path
        before = file.read_text(encoding="utf-8")
        file.write_text(before.replace(old, new), encoding="utf-8")
        self.guild("replay", run, expect=1)
        file.write_text(before, encoding="utf-8")

    def data(self, *words: str) -> Any:
        """Run a command without printing it, and return the JSON that it prints."""
        return json.loads(self._capture([*_GUILD, *words, "--json"]))

    def entries(self, run: str) -> list[dict[str, Any]]:
        """Return the log of a run."""
        return [json.loads(line) for line in self._capture([*_GUILD, "log", run, "--json"]).splitlines()]

    def git(self, *words: str) -> None:
        """Run a git command and print its output."""
        self.show(f"$ {shlex.join(['git', *words])}")
        out = self.git_output(*words)
        if out.strip():
            self.show(out)

    def git_output(self, *words: str) -> str:
        """Run a git command without printing it, and return its output."""
        return self._capture(["git", *words], stderr=subprocess.STDOUT, env=_GIT)

    def _capture(self, words: Sequence[str], *, stderr: int | None = None, env: Mapping[str, str] | None = None) -> str:
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
                f"the demo failed: `{command}` ended with exit code {code} instead of {expect}",
                hint="Check the installation: guild doctor",
            )


class GuildStory(Story):
    """A manager commissions work in a git repository. A commission fails, another conflicts with the user's changes.

    The workers never change the user's branch or files.
    """

    answers = "files"
    opening = (
        "Guildhall runs AI agents that are defined in files. In this demo a manager dispatches two commissions in a "
        "git repository. One fails and is retried. One conflicts with a change of yours. Everything is killed and "
        "continues. The result waits on a branch for your review. Your own branch and files are never changed."
    )
    closing = 'Next: `guild project add` in one of your repositories, then `guild run manager "..."`.'

    def play(self) -> None:
        self._create_project()
        design, code = self._create_commissions()
        self._retry_design(design)
        self._cause_conflict()
        self._resolve_conflict(code)
        self._review_work()

    def _create_project(self) -> None:
        self.title("Register a repository")
        self.guild("init", ".", "--example", "guild")
        for words in (("init", "-q", "-b", "main"), ("add", "--all"), ("commit", "-qm", "The shop")):
            self.git(*words)
        self.guild("project", "add", ".")

    def _create_commissions(self) -> tuple[str, str]:
        self.title("The manager creates commissions")
        self.say(
            "The manager comes with Guildhall. It edits no files. Only the manager has the tools that create, dispatch "
            "and wait for commissions, request meetings and open a review."
        )
        self.guild("run", "manager", "We need a discount in the cart. Write a design first.")
        self.say("You can change or cancel every commission. The code waits for the design:")
        self.guild("ls", "commissions")
        ids = {one["worker"]: str(one["commission"]) for one in self._commissions()}
        return ids["writer"], ids["coder"]

    def _commissions(self) -> list[dict[str, Any]]:
        return self.data("ls", "commissions")["commissions"]

    def _retry_design(self, design: str) -> None:
        self.title("Retry a failed commission")
        self.say("The work of the first attempt is kept on its branch. You raise the limit and retry:")
        self.guild("edit", design, "--max-turns", "10")
        self.guild("retry", design, "--wait")
        self.git("log", "--oneline", "claude/main")
        self.say("The result is on claude/main, the integration branch. Your own branch and folder are unchanged:")
        self.git("status", "--short", "--branch")

    def _cause_conflict(self) -> None:
        self.title("You commit a change, and everything is killed")
        self.say(
            "The manager dispatches the code. While the coder works in its own worktree, you commit a change to the "
            "same lines. Then we `kill -9` the hall, and with it the manager and the coder."
        )
        words = ("run", "manager", "The design is done. Continue.", "--model", "script:answers/go-on.yaml")
        self.guild_killed("→ wait_for_commissions", *words, before=self._change_cart)
        self.guild("ls")

    def _change_cart(self) -> None:
        cart = self.folder / "src" / "cart.js"
        text = cart.read_text(encoding="utf-8")
        cart.write_text(text.replace("total(prices) {", "total(prices = []) {"), encoding="utf-8")
        self.git("commit", "-qam", "An empty cart costs nothing")

    def _resolve_conflict(self, code: str) -> None:
        self.title("The runs continue from their journals")
        self.say(
            "The next command that needs a hall starts one, and both runs continue. No answered model call is "
            "repeated, and no commission is created twice. The work conflicts with your change, so nothing is merged. "
            "The branch is kept, and you get an ask."
        )
        waiting = self.data("ls")["needs_you"]["runs"]
        self.guild("resume", next(one["run"] for one in waiting if one["worker"] == "manager"))
        self.guild("ls")
        asks = {one["kind"]: one["ask"] for one in self.data("ls")["needs_you"]["asks"]}
        self.say(
            "The coder requests a meeting about the conflict. You decline it, and start the commission over from your "
            "current branch."
        )
        if "meeting" in asks:
            self.guild("answer", asks["meeting"], "no")
        self.guild("answer", asks["conflict"], "redispatch")
        self.guild("wait", code)
        attempts = {one["worker"]: one["attempt"] for one in self._commissions()}
        if attempts != {"writer": 2, "coder": 2}:
            raise GuildError(f"the demo failed: two attempts each expected, got {attempts}", hint=_REPORT_HINT)

    def _review_work(self) -> None:
        self.title("Review and merge")
        before = self._user_state()
        self.guild("run", "manager", "Open a review.", "--model", "script:answers/review.yaml")
        self.say("Without a remote, a review is a branch with a summary. With a remote and `gh` it is a pull request.")
        branch = self.git_output("for-each-ref", "--format=%(refname:short)", "refs/heads/claude/review/").strip()
        self.git("diff", "--stat", f"main...{branch}")
        self.git("diff", f"main...{branch}", "--", "src")
        if self._user_state() != before:
            raise GuildError("the demo failed: the branch or the files of the user have changed", hint=_REPORT_HINT)
        self.say("Your branch, index and files are still unchanged. Only you merge:")
        self.git("status", "--short", "--branch")
        self.git("merge", "--ff-only", "-q", branch)
        self.show_file("src/cart.js")

    def _user_state(self) -> tuple[str, str, bytes]:
        """Return the user's commit, the status of the files, and the content of the edited file."""
        status = self.git_output("--no-optional-locks", "status", "--porcelain")
        return self.git_output("rev-parse", "main"), status, (self.folder / "src" / "cart.js").read_bytes()


class OfficeStory(Story):
    """A chief calls readers of its invoices, asks for approval, is killed, resumes, and becomes a test."""

    name = "office"
    needs_git = False
    opening = (
        "Guildhall runs AI agents that are defined in files. In this demo a worker calls other workers, creates one, "
        "asks you, is killed, continues, uses its memory, and is replayed."
    )
    closing = "Next: `guild init my-guild`, then `guild run greeter`. All commands: `guild help all`."

    def play(self) -> None:
        self.title("A worker is a file")
        self.guild("init", ".", "--example", "office")
        self.say(
            "The file defines the instructions, the sandboxes, the workers that it may call, and what needs approval."
        )
        self.show((self.folder / "workers" / "chief.yaml").read_text())
        ask = self._share_work()
        run = self._kill_hall(ask)
        self._resume_run(run)
        self._use_memory()
        self._replay_run(run)
        self._record_test(run)

    def _share_work(self) -> str:
        self.title("Child runs, and an approval")
        self.say(
            "The chief calls the reader for each invoice: three child runs at once, each with its own tools, limits "
            "and output schema. Then it creates a new worker. That needs your approval, so the run waits and the "
            "command ends."
        )
        self.guild("run", "chief", "Add up the invoices of this month", expect=4)
        needs_you = self.data("ls")["needs_you"]
        ask: str = needs_you["asks"][0]["ask"]
        self.say("The ask waits for days if needed. It shows the new worker in full:")
        self.guild("show", ask)
        return ask

    def _kill_hall(self, ask: str) -> str:
        self.title("You approve, and everything is killed")
        self.say(
            "The answer continues the run at that call. Right after the new worker is created we `kill -9` the hall "
            "and all its runs."
        )
        self.guild_killed("← worker_create", "answer", ask, "yes")
        self.guild("ls")
        return self.data("show", ask)["run"]

    def _resume_run(self, run: str) -> None:
        self.title("The run continues from its journal")
        self.say(
            "No answered model call and no finished tool call is repeated: no invoice is read twice, and the new "
            "worker exists. The chief calls it, and saves a note for the next run."
        )
        self.guild("resume", run)
        shown = self.data("show", run)
        self.say(f"The journal has {len(self.entries(run))} steps in {len(shown['below']) + 1} runs. The new file:")
        self.show((self.folder / "outbox" / "total.md").read_text())

    def _use_memory(self) -> None:
        self.title("Memory")
        self.say("Memory entries are plain files with a log of changes. The prompt of the next run contains them.")
        self.guild("memory", "ls", "--worker", "chief")
        self.guild("run", "chief", "Who has to be reminded?", "--override-model", "script:next-time.yaml")

    def _replay_run(self, run: str) -> None:
        self.title("Replay")
        self.say("Replay repeats all runs offline: today's prompts, rules and schemas with the recorded answers.")
        self.replay(run, "reader", "workers/reader.yaml", "a careful reader", "a quick reader")

    def _record_test(self, run: str) -> None:
        self.title("A recorded run as a test")
        self.say("The test fails if the prompts, the calls or the result change.")
        self.guild("script", run, "--out", "tests/this-run.yaml")
        self.guild("test")


class ReviewStory(Story):
    """A coordinator, a reviewer and a coder review a change, vote, ask for approval, are killed and resume."""

    opening = (
        "Guildhall runs AI agents that are defined in files. In this demo three agents review a change: they talk, "
        "vote and ask you. They are killed with their hall, continue, are replayed, and become a test."
    )
    closing = (
        "Next: `guild init my-review --example review`. All commands: `guild help all`. Another demo, of workers that "
        "call each other: `guild demo --office`."
    )
    last_commands = ("cost", "ls", "hall stop")

    def __init__(self, top: Path, runtime: str | None = None) -> None:
        """`runtime`: executes the agents instead of pydantic. Its commands get the variable that names its program."""
        variable = RUNTIMES[runtime].variable if runtime else ""
        super().__init__(top, {variable: os.environ[variable]} if variable in os.environ else {})
        self._runtime = runtime

    def play(self) -> None:
        self.title("A team is a file")
        self.guild("init", ".", "--example", "review")
        if self._runtime is not None:
            self._name_runtime(self._runtime)
        self.show_file("review.yaml")
        self._create_change()
        run, ask = self._run_team()
        self._kill_hall(ask)
        self._resume_team(run)
        self._replay_team(run)
        self._record_test(run)

    def _name_runtime(self, runtime: str) -> None:
        self.say(
            f"Each agent has the runtime {runtime}: the real program executes it, confined to the two doors of the "
            "hall. Everything else stays the same."
        )
        file = self.folder / "review.yaml"
        text = file.read_text(encoding="utf-8")
        text = text.replace("{system_prompt:", f"{{runtime: {runtime}, system_prompt:")
        text = text.replace("\n    system_prompt:", f"\n    runtime: {runtime}\n    system_prompt:")
        file.write_text(text, encoding="utf-8")

    def _create_change(self) -> None:
        self.title("A change to review")
        self.say("A repository, and a change that contains many @names: owners, a package, a decorator, an address.")
        for words in (("init", "-q"), ("add", "--all"), ("commit", "-qm", "The shop"), ("apply", "change.patch")):
            self.git(*words)
        self.say(
            "The setup commands of a workflow run as you, without confinement. So you review and trust the file first. "
            "You see what each agent may do, and:"
        )
        self.guild("trust", "review.yaml", "--yes", since="setup")

    def _run_team(self) -> tuple[str, str]:
        self.title("The agents work until they need you")
        self.say(
            "The command starts a hall, which starts one process per run. The first message quotes the diff, and "
            "@names in a quotation notify no agent. A mention in a message starts a run of that agent. The agents read "
            "the code, report, and vote. Then the coder wants to change a file. That needs your approval, so the "
            "workflow waits and the command ends."
        )
        self.guild("run", "review.yaml", expect=4)
        self.say("The documents of a workflow are plain files. One of them has the result of the vote:")
        self.guild("doc", "read", "@review", "decisions.md")
        ask: dict[str, Any] = self.data("ls")["needs_you"]["asks"][0]
        run: str = self.data("show", ask["run"])["root"]
        self.say("The ask waits for days if needed:")
        self.guild("show", ask["ask"])
        return run, ask["ask"]

    def _kill_hall(self, ask: str) -> None:
        self.title("You approve, and everything is killed")
        self.say(
            "The answer continues the run at that call. Right after the file is changed we `kill -9` the hall and all "
            "agents."
        )
        self.guild_killed("← Edit", "answer", ask, "yes")
        self.guild("ls")

    def _resume_team(self, run: str) -> None:
        self.title("The runs continue from their journals")
        self.say(
            "The next command that needs a hall starts one, and it finds the interrupted runs. No answered model call "
            "is repeated, no message is sent twice, and the file is changed only once."
        )
        self.guild("resume", run)
        entries = [entry for entry in self.entries(run) if "data" in entry]  # the others are messages
        edits = [entry for entry in entries if entry["kind"] == "tool_started" and entry["data"].get("tool") == "Edit"]
        if len(edits) != 1:
            raise GuildError(f"the demo failed: Edit was called {len(edits)} times instead of once", hint=_REPORT_HINT)
        runs = len(self.data("show", run)["below"]) + 1
        self.say(f"The journal has {len(entries)} steps in {runs} runs, and one Edit. The result:")
        self.guild("doc", "read", "@review", "review.md")
        self.git("diff", "--unified=1", "shop")

    def _replay_team(self, run: str) -> None:
        self.title("Replay")
        self.say(
            "Replay repeats the whole workflow offline: setup, room, votes and all agents, with today's files and the "
            "recorded answers."
        )
        self.replay(run, "coder", "prompts/coder.md", "as little as possible", "as you like")

    def _record_test(self, run: str) -> None:
        self.title("A recorded workflow as a test")
        self.say("The test fails if the prompts, the calls or the result change.")
        self.guild("script", run, "--out", "tests/this-review.yaml")
        self.guild("test")
