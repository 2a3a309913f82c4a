"""The harness of the kill tests with a workflow: setup, two agents who pass the word, documents, a vote, an approval.

Whoever is killed is the hall itself: the command is the hall while it runs. What is compared in the end is read with
sqlite3 and from the disk alone.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from guildhall.core.paths import HOME_VARIABLE
from guildhall.hall.client.discovery import EMBEDDED_VARIABLE
from tests.kill.harness import Ended

if TYPE_CHECKING:
    from pathlib import Path

    from tests.kill.harness import Driver, When

RUN = ("run", "team.yaml", "--output", "json")
_MAX_COMMANDS = 12  # commands until the workflow has ended


def call(tool: str, /, **arguments: Any) -> dict[str, Any]:
    return {"call": tool, "with": arguments}


def say(text: str) -> dict[str, Any]:
    return {"say": text}


# Who moves is always one alone, so that what comes out does not depend on who is faster.
ANN = [
    [call("document_write", file="plan.md", content="# Plan\n"), call("channel_send", message="@bob look"), say("one")],
    [
        call("channel_read"),
        # One response, because the vote ends the run.
        {
            "calls": [
                call("proposal_vote", proposal="p-1", choice="yes"),
                call("channel_send", message="@bob your vote"),
            ]
        },
    ],
    [
        call("document_append", file="plan.md", content="shipped\n"),
        call("channel_send", message="It is shipped."),
        say("five"),
    ],
]
BOB = [
    [
        call("document_create", file="notes/b.md", content="b"),
        call("Write", file_path="made.txt", content="made"),
        call("proposal_create", type="decision", title="Ship it?", options=["yes", "no"]),
        say("two"),
    ],
    [
        call("proposal_vote", proposal="p-1", choice="yes"),
        call("channel_send", message="@ann it has passed"),
        say("four"),
    ],
]
SCRIPT = {"ann": ANN, "bob": BOB}
SETUP = [{"shell": "echo begun > setup.log; echo hello", "as": "word"}]


def thanks(to: str, runs: int) -> list[Any]:
    words = ["first", "second", "third", "fourth", "fifth"]
    return [[call("channel_send", message=f"@{to} thank you, {words[number]}"), say("ok")] for number in range(runs)]


@dataclass(kw_only=True)
class TeamHarness:
    """One workflow, the kills, and the recorded effects."""

    project: Path
    home: Path
    driver: Driver
    asked: list[str] = field(default_factory=list)
    _commands: int = 0

    def write_project(self, *, provider: str, **fields: Any) -> TeamHarness:
        """Write the team that uses every operation of a room."""
        usual = {"system_prompt": "You are at work.", "model": "script:script.yaml"}
        asked = {**usual, "tools": ["Write"], "tool_rules": {"fs.write": {"approval_required": True}}}
        return self.put(
            SCRIPT,
            agents={"ann": usual, "bob": asked},
            context={"provider": provider, "documentOwner": "none"},
            setup=SETUP,
            kickoff="@ann begin: ${{ word }}",
            **fields,
        )

    def lay_out_talk(self) -> TeamHarness:
        """Write the team that elects an owner and then talks in a loop."""
        usual = {"system_prompt": "You are at work.", "model": "script:script.yaml"}
        limits = {"max_hops": 2, "max_repeats": 100, "max_rounds_without_progress": 100}
        script = {"ann": thanks("bob", 5), "bob": thanks("ann", 5)}
        agents = {"ann": usual, "bob": usual}
        return self.put(script, {"ann": "bob", "bob": "bob"}, agents=agents, limits=limits, kickoff="@ann begin")

    def put(self, script: dict[str, Any], election: dict[str, str] | None = None, **workflow: Any) -> TeamHarness:
        text = {"workers": script, "election": election or {}}
        (self.project / "script.yaml").write_text(json.dumps(text))
        (self.project / "team.yaml").write_text(json.dumps(workflow))
        assert self.guild("trust", "--yes").code == 0
        return self

    # acting

    def guild(self, *words: str) -> Ended:
        out = self._order(words)
        code = self.driver.ended()
        count = json.loads((out.parent / f"{out.name}.commits").read_text()) if code != 70 else 0
        return Ended(code=code, out=out.read_text(), err=out.with_suffix(".err").read_text(), commits=count)

    def kill_at(self, number: int, when: When, *words: str) -> bool:
        """Return True if the command was killed at that commit, False if it ended before."""
        self._order(words, number=number, when=when)
        pid = self.driver.stopped()
        if pid is not None:
            self.driver.kill(pid)
        return pid is not None

    def _order(self, words: tuple[str, ...], *, number: int = 0, when: str = "") -> Path:
        self._commands += 1
        out = self.project.parent / f"command-{self._commands}.out"
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.project.parent),
            HOME_VARIABLE: str(self.home),
            EMBEDDED_VARIABLE: "1",
        }
        self.driver.start(
            words=list(words),
            number=number,
            when=when,
            function="",
            grouped=False,
            env=env,
            cwd=str(self.project),
            out=str(out),
            err=str(out.with_suffix(".err")),
        )
        return out

    def start(self) -> Ended:
        return self.guild(*RUN)

    def resume(self) -> None:
        """Resume the workflow and answer its asks truthfully until it has ended."""
        for _ in range(_MAX_COMMANDS):
            found = self.rows("SELECT id, status FROM runs WHERE parent IS NULL") if self._began() else []
            if not found:
                ended = self.start()
            elif found[0][1] == "completed":
                return
            else:
                ended = self.guild("resume", found[0][0], "--output", "json")
            while ended.code == 4 and ended.json["asks"]:
                ended = self.answer(ended.json["asks"][0])
            assert ended.code in (0, 4), ended
        raise AssertionError("the workflow does not come to an end")

    def answer(self, ask: dict[str, Any]) -> Ended:
        return self.guild("answer", ask["ask"], self.choice(ask), "--output", "json")

    def choice(self, ask: dict[str, Any]) -> str:
        self.asked.append(ask["kind"])
        if ask["kind"] == "loop":
            taken = self.rows("SELECT 1 FROM asks WHERE kind = 'loop' AND status IN ('answered', 'applied')")
            return "no" if taken else "yes"
        if ask["kind"] != "interrupted_call":
            return "yes"
        (key,) = self.rows("SELECT key FROM asks WHERE id = ?", ask["ask"])[0]
        done = not key.startswith("setup") and (self.project / "made.txt").exists()  # what a setup printed is needed
        return "done" if done else "again"

    # the witnesses

    def rows(self, query: str, *values: Any) -> list[Any]:
        with closing(sqlite3.connect(self.home / "hall.db", timeout=5)) as connection:
            return connection.execute(query, values).fetchall()

    def _began(self) -> bool:
        made = (self.home / "hall.db").exists()
        return made and bool(self.rows("SELECT 1 FROM sqlite_master WHERE name = 'workflows'"))

    def is_complete(self) -> bool:
        return self.rows("PRAGMA integrity_check") == [("ok",)] and not self.rows("PRAGMA foreign_key_check")

    def end(self) -> dict[str, Any]:
        """Return all effects of the team."""
        workflow = self.project / ".workflow"
        return {
            "messages": [
                [*row[:-1], _strip_times(row[-1])]
                for row in self.rows("SELECT id, kind, sender, mentions, hops, content FROM messages ORDER BY room, id")
            ],
            "mail": self.rows("SELECT agent, message, status FROM deliveries ORDER BY room, agent, message"),
            "documents": [
                (path, _strip_times(text))
                for path, text in self.rows("SELECT path, content FROM documents ORDER BY room, path")
            ],
            "proposals": self.rows("SELECT number, type, title, status, result FROM proposals ORDER BY room, number"),
            "votes": self.rows("SELECT proposal, agent, choice FROM votes ORDER BY room, proposal, agent"),
            "roles": self.rows("SELECT owner, roles FROM rooms ORDER BY id"),
            "runs": self.rows("SELECT worker, ordinal, status, output, turns FROM runs ORDER BY worker, ordinal"),
            "workflow": self.rows("SELECT name, generation, status FROM workflows"),
            "agents": self.rows("SELECT name, status, attempts FROM agents ORDER BY name"),
            "files": {
                str(path.relative_to(workflow)): _strip_times(path.read_text())
                for path in sorted(workflow.rglob("*"))
                if path.is_file()
            },
            "made": {
                name: (self.project / name).read_text()
                for name in ("made.txt", "setup.log")
                if (self.project / name).exists()
            },
        }


def _strip_times(text: str) -> str:
    """Return a text without its times."""
    return re.sub(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?Z?|\b\d\d:\d\d:\d\d\b", "(then)", text)
