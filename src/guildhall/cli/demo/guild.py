"""Guild story: plays `guild demo --guild`, in which a manager commissions work in a git repository.

A commission fails and is dispatched again, another conflicts with the user's changes, and the hall is killed. The
workers never change the user's branch or files. Does not run commands itself (see `cli.demo.story`).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from guildhall.cli.demo.story import GIT, HallStory
from guildhall.core.errors import GuildError

if TYPE_CHECKING:
    from pathlib import Path

_MINE = "export function total(prices = []) {"


class GuildStory(HallStory):
    """A manager, a writer and a coder, and the repository of a shop."""

    def __init__(self, top: Path) -> None:
        super().__init__(top, "shop")

    def play(self) -> None:
        self.say(
            "Guildhall runs AI workers that are files. You will see a manager commission two of them with work in a "
            "git repository: one fails and is tried anew, one conflicts with what you did meanwhile, all of it is "
            "killed and goes on, and what is done waits on a branch. Your own branch and your files stay yours."
        )
        self.say(
            "Everything is real but the model: its answers are read from files, so no key and no network are needed."
        )
        self._a_project()
        design, code = self._are_commissioned()
        self._is_tried_anew(design)
        self._conflicts()
        self._goes_on(code)
        self._is_reviewed()
        self.title("That was it")
        self.guild("cost")
        self.guild("hall", "stop")
        self.say('Make it yours: `guild project add` in a repository of yours, then `guild run manager "..."`.')

    def _a_project(self) -> None:
        self.title("A repository becomes a project")
        self.guild("init", ".", "--example", "guild")
        for words in (("init", "-q", "-b", "main"), ("add", "--all"), ("commit", "-qm", "The shop")):
            self.other("git", *words, env=GIT)
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
        self.guild("commission", "ls")
        made = {one["worker"]: str(one["commission"]) for one in self._commissions()}
        return made["writer"], made["coder"]

    def _commissions(self) -> list[dict[str, Any]]:
        return json.loads(self.quietly("commission", "ls", "--json"))["commissions"]

    def _is_tried_anew(self, design: str) -> None:
        self.title("One has failed, and is tried anew")
        self.say("Its work so far is kept on its branch. You give it more turns, and dispatch it again:")
        self.guild("commission", "edit", design, "--max-turns", "10")
        self.guild("commission", "redispatch", design, "--wait")
        self.other("git", "log", "--oneline", "claude/main", env=GIT)
        self.say("What it wrote is on claude/main, the branch on which the guild gathers its work. In your folder:")
        self.other("git", "status", "--short", "--branch", env=GIT)

    def _conflicts(self) -> None:
        self.title("You go on yourself, and everything is killed")
        self.say(
            "The manager has the code written. While the coder works, in a checkout of its own, you commit a change to "
            "the same lines. Then we `kill -9` the hall: the doors, the manager and the coder at once."
        )
        killed = False
        with self.started(
            "run", "manager", "The design is there: go on.", "--model", "script:answers/go-on.yaml"
        ) as process:
            for line in process.stdout or ():
                self.show_line(line)
                if "→ wait_for_commissions" in line and not killed:
                    self._changes()
                    killed = self.kill()
        self.guild("ls")

    def _changes(self) -> None:
        cart = self.folder / "src" / "cart.js"
        text = cart.read_text(encoding="utf-8")
        cart.write_text(text.replace("export function total(prices) {", _MINE), encoding="utf-8")
        self.other("git", "commit", "-qam", "An empty cart costs nothing", env=GIT)

    def _goes_on(self, code: str) -> None:
        self.title("They go on where the record ends")
        self.say(
            "The next command that needs a hall starts one. Both go on by themselves: no answered model call is made "
            "again, nothing is commissioned twice. But the work does not fit what you have now: nothing is merged, its "
            "branch is kept, and you are asked."
        )
        lost = json.loads(self.quietly("ls", "--json"))["needs_you"]["runs"]
        self.guild("resume", next(one["run"] for one in lost if one["worker"] == "manager"))
        self.guild("ls")
        asks = {one["kind"]: one["ask"] for one in json.loads(self.quietly("ls", "--json"))["needs_you"]["asks"]}
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
        branch = self._git("for-each-ref", "--format=%(refname:short)", "refs/heads/claude/review/").strip()
        self.other("git", "diff", "--stat", f"main...{branch}", env=GIT)
        self.other("git", "diff", f"main...{branch}", "--", "src", env=GIT)
        if self._theirs() != before:
            raise GuildError("something of the user's has changed")
        self.say("Until here your branch, your index and your files are as you left them. Only you merge:")
        self.other("git", "status", "--short", "--branch", env=GIT)
        self.other("git", "merge", "--ff-only", "-q", branch, env=GIT)
        self.show_file("src/cart.js")

    def _theirs(self) -> tuple[str, str, bytes]:
        """The user's branch, what differs from it, and the file that others work on."""
        status = self._git("--no-optional-locks", "status", "--porcelain")
        return self._git("rev-parse", "main"), status, (self.folder / "src" / "cart.js").read_bytes()

    def _git(self, *words: str) -> str:
        return self.heard("git", *words, env=GIT)
