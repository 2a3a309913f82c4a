"""The harness of the kill tests: a worker, a model on the wire, processes that are killed, and the witnesses.

Nothing that judges is inside the killed process: the book is a file that its tools write to, the requests are those
that the server has seen, the record is read with sqlite3 alone.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sqlite3
import subprocess
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from guildhall.core.paths import HOME_VARIABLE
from guildhall.hall.client.discovery import EMBEDDED_VARIABLE
from tests.conftest import ROOT
from tests.warm import StartedCommand

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from guildhall.testing.scripted_server import Exchange, ScriptedServer
    from tests.warm import WarmProcess

When = Literal["before", "inside", "after"]
TIMEOUT_S = 30.0  # for a whole command, also on a loaded machine

SCRIPT = """
workers:
  clerk:
    - - say: I begin.
        calls:
          - {call: enter, with: {line: one}}
          - {call: look, with: {}}
          - {call: enter, with: {line: two}}
          - {call: send, with: {line: letter}}
        usage: {input: 1000, output: 100}
      - calls:
          - {call: look, with: {}}
          - {call: enter, with: {line: three}}
        usage: {input: 2000, output: 200}
      - {say: all entered, usage: {input: 3000, output: 300}}
"""
WORKER = """name: clerk
description: Enters lines into a book
instructions: Enter the requested lines.
model: anthropic:claude-sonnet-4-5
toolboxes: [desk]
sandboxes:
  desk: {path: ./desk, mode: rw}
tool_rules:
  send: {approval_required: true}
"""
TOOLBOX = '''
import time
from pathlib import Path

from guildhall import tool

DESK = Path(@DESK@)


def _effect(line):
    """One line in the book. Where the test has laid a hold, it stays just before or just after the effect."""
    _hold("before", line)
    with (DESK / "book").open("a") as book:
        book.write(line + "\\n")
    _hold("after", line)
    return f"entered {line}"


def _hold(when, line):
    if (DESK / f"hold-{when}-{line}").exists():
        (DESK / f"held-{when}-{line}").touch()
        time.sleep(1.0)
        (DESK / f"passed-{when}-{line}").touch()
        time.sleep(60)


@tool(capabilities={"fs.write"})
def enter(line: str) -> str:
    """Enter a line into the book."""
    return _effect(line)


@tool(capabilities={"fs.write"})
def send(line: str) -> str:
    """Send a letter."""
    return _effect(line)


@tool(capabilities={"fs.write"}, repeatable=True)
def look() -> str:
    """Look at the desk."""
    with (DESK / "looks").open("a") as looks:
        looks.write("look\\n")
    _hold("after", "look")
    return "a desk"
'''
EFFECTS = ("one", "two", "letter", "three")
LINE_OF = {"m1/call_0_0": "one", "m1/call_0_2": "two", "m1/call_0_3": "letter", "m2/call_1_1": "three"}


def write_project(project: Path, home: Path) -> None:
    """Write the worker and its toolbox."""
    desk = project / "desk"
    desk.mkdir()
    (project / "workers").mkdir()
    (project / "workers" / "clerk.yaml").write_text(WORKER)
    (home / "toolboxes").mkdir(parents=True)
    (home / "toolboxes" / "desk.py").write_text(TOOLBOX.replace("@DESK@", repr(str(desk))))


@dataclass(frozen=True, kw_only=True)
class Ended:
    """The result of a command that ended by itself."""

    code: int
    out: str
    err: str
    commits: int

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Driver:
    """The process that forks commands (driver.py), and the hand that kills them."""

    def __init__(self, warm: WarmProcess) -> None:
        environment = {name: os.environ[name] for name in ("PATH", "LANG", "TZ", "TMPDIR") if name in os.environ}
        pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
        self._process = StartedCommand(warm, (), program="tests.kill.driver", cwd=ROOT, env=environment, **pipes)
        self._said = b""
        self._busy: int | None = None
        self._heard("ready")

    def start(self, **order: Any) -> int:
        """Starts a command; its process id."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        self._busy = self._heard("started")["pid"]
        return self._busy

    def ended(self) -> int:
        """Waits for the end of the command; its exit code."""
        return self._heard("ended")["code"]

    def stopped(self) -> int | None:
        """Waits until the command stands at its commit, or has ended: its process id, or None."""
        return self._heard("stopped", "ended").get("pid")

    def over(self) -> bool:
        """Return True if the command ended by itself."""
        assert self._process.stdout is not None
        return bool(select.select([self._process.stdout], [], [], 0)[0])

    def kill(self, pid: int) -> None:
        """kill -9, from outside."""
        os.kill(pid, signal.SIGKILL)
        self._heard("killed")

    def settle(self) -> None:
        """Leaves nothing behind of a test that broke off."""
        if self._busy is not None:
            os.kill(self._busy, signal.SIGKILL)
            while self._busy is not None:
                self._heard("stopped", "killed", "ended")

    def close(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()

    def _heard(self, *states: str) -> dict[str, Any]:
        assert self._process.stdout is not None
        while b"\n" not in self._said:
            ready, _, _ = select.select([self._process.stdout], [], [], TIMEOUT_S)
            data = os.read(self._process.stdout.fileno(), 65536) if ready else b""
            assert data, "the driver says nothing"
            self._said += data
        line, _, self._said = self._said.partition(b"\n")
        heard = json.loads(line)
        if heard["state"] in ("killed", "ended"):
            self._busy = None
        assert heard["state"] in states, heard
        return heard


@dataclass(kw_only=True)
class KillHarness:
    """One run of the clerk, the kills, and the recorded effects."""

    project: Path
    home: Path
    driver: Driver
    server: ScriptedServer
    asked: list[str] = field(default_factory=list)  # interrupted calls that the user was asked about
    said_done: list[str] = field(default_factory=list)  # those that the user marked as done
    _from: int = 0
    _commands: int = 0
    _pid: int = 0

    def __post_init__(self) -> None:
        self._from = len(self.server.requests)

    # acting

    def guild(self, *words: str, **order: Any) -> Ended:
        """Run a command to its end."""
        out = self._order(words, **order)
        return self._result(out, self.driver.ended())

    def guild_until(self, number: int, when: When, *words: str, **order: Any) -> Ended | None:
        """Run a command and kill it at this commit. Return its result if it ended before."""
        out = self._order(words, number=number, when=when, **order)
        pid = self.driver.stopped()
        if pid is None:
            return self._result(out)
        self.driver.kill(pid)
        return None

    def guild_until_file(self, name: str, *words: str) -> None:
        """Run a command and kill it as soon as a tool has written this file."""
        out = self._order(words)
        deadline = time.monotonic() + TIMEOUT_S
        while not (self.project / "desk" / name).exists():
            assert time.monotonic() < deadline, out.with_suffix(".err").read_text()
            assert not self.driver.over(), out.with_suffix(".err").read_text()
            time.sleep(0.01)
        self.driver.kill(self._pid)

    def _order(
        self,
        words: Sequence[str],
        *,
        number: int = 0,
        when: str = "",
        function: str = "",
        grouped: bool = False,
        program: str = "",
    ) -> Path:
        self._commands += 1
        out = self.project.parent / f"command-{self._commands}.out"
        self._pid = self.driver.start(
            words=list(words),
            number=number,
            when=when,
            function=function,
            grouped=grouped,
            program=program,
            env=self.environment,
            cwd=str(self.project),
            out=str(out),
            err=str(out.with_suffix(".err")),
        )
        return out

    @staticmethod
    def _result(out: Path, code: int = 0) -> Ended:
        commits = Path(f"{out}.commits")
        count = json.loads(commits.read_text()) if commits.exists() else 0
        return Ended(code=code, out=out.read_text(), err=out.with_suffix(".err").read_text(), commits=count)

    @property
    def environment(self) -> Mapping[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.project.parent),
            HOME_VARIABLE: str(self.home),
            EMBEDDED_VARIABLE: "1",
            "ANTHROPIC_BASE_URL": self.server.anthropic_url,
            "ANTHROPIC_API_KEY": "script-clerk",
        }

    def start(self) -> Ended:
        return self.guild("run", "clerk", "go", "--output", "json")

    def resume(self, run: str, *, unknown: str | None = None) -> None:
        """Resume the run and answer its asks truthfully, unless the test overrides an answer, until it has ended."""
        for _ in range(8):
            if self.rows("SELECT status FROM runs")[0][0] == "completed":
                return
            ended = self.guild("resume", run, "--output", "json")
            while ended.code == 4 and (asks := ended.json["asks"]):
                ended = self.answer(asks[0], unknown)
            assert ended.code in (0, 1, 4), ended
        raise AssertionError("the run does not come to an end")

    def answer(self, ask: Mapping[str, Any], unknown: str | None = None) -> Ended:
        choice = "yes"
        if ask["kind"] == "interrupted_call":
            (key,) = self.rows("SELECT key FROM asks WHERE id = ?", ask["ask"])[0]
            choice = unknown or ("done" if LINE_OF[key] in self.book else "again")
            self.asked.append(key)
            if choice == "done":
                self.said_done.append(key)
        return self.guild("answer", ask["ask"], choice, "--output", "json")

    def lay_hold(self, when: str, line: str) -> None:
        (self.project / "desk" / f"hold-{when}-{line}").touch()

    def lift_holds(self) -> None:
        for hold in (self.project / "desk").glob("hold-*"):
            hold.unlink()

    # the witnesses

    @property
    def book(self) -> list[str]:
        book = self.project / "desk" / "book"
        return book.read_text().splitlines() if book.exists() else []

    @property
    def requests(self) -> list[Exchange]:
        return self.server.requests[self._from :]

    def answers_by_step(self) -> Counter[str]:
        """Return how often the server answered each model call."""
        steps = [1 + sum(m["role"] == "assistant" for m in (e.body or {})["messages"]) for e in self.requests]
        return Counter(f"m{step}" for step, exchange in zip(steps, self.requests, strict=True) if exchange.answered)

    def rows(self, query: str, *values: Any) -> list[Any]:
        with closing(sqlite3.connect(self.home / "hall.db", timeout=5)) as connection:
            return connection.execute(query, values).fetchall()

    def run_id(self) -> str | None:
        """Return the recorded run, or None if the kill came before the first commit."""
        if not (self.home / "hall.db").exists():
            return None
        found = self.rows("SELECT id FROM runs") if self.rows("SELECT 1 FROM sqlite_master WHERE name = 'runs'") else []
        return found[0][0] if found else None

    def is_complete(self) -> bool:
        """Check that the database is consistent."""
        if not (self.home / "hall.db").exists():
            return True
        return self.rows("PRAGMA integrity_check") == [("ok",)] and not self.rows("PRAGMA foreign_key_check")

    def entries(self) -> list[tuple[int, str, str | None, Any]]:
        rows = self.rows("SELECT seq, kind, key, data FROM journal ORDER BY seq")
        return [(seq, kind, key, json.loads(data)) for seq, kind, key, data in rows]

    def answered(self) -> set[str]:
        """Return the model calls with a recorded answer."""
        return {key for _, kind, key, _ in self.entries() if kind == "model_answered" and key}

    def finished(self) -> set[str]:
        """Return the tool calls with a recorded end."""
        return {key for _, kind, key, _ in self.entries() if kind == "tool_ended" and key}

    def cut_off(self) -> set[str]:
        """Return the started tool calls without a recorded end that may not be repeated."""
        started = {key for _, kind, key, data in self.entries() if kind == "tool_started" and data["tool"] != "look"}
        return {key for key in started if key} - self.finished()

    def conversation(self, run: str) -> Iterator[Mapping[str, Any]]:
        """Return the conversation of the model and the tools."""
        return self.mask(self.guild("show", run, "--json").json["messages"])

    def mask(self, messages: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        """Return the messages without results that only the user has confirmed."""
        ids = {key.partition("/")[2] for key in self.said_done}
        for message in messages:
            yield {**message, "content": "(not seen)"} if message.get("id") in ids else message


@dataclass(frozen=True, kw_only=True)
class Undisturbed:
    """A run that is not killed: the commits of its two commands, and its outcome."""

    run_commits: int
    answer_commits: int
    result: Mapping[str, Any]
    messages: Sequence[Mapping[str, Any]]
    book: Sequence[str]

    @staticmethod
    def of(harness: KillHarness) -> Undisturbed:
        started = harness.start()
        assert started.code == 4, started
        ended = harness.answer(started.json["asks"][0])
        assert ended.code == 0, ended
        return Undisturbed(
            run_commits=started.commits,
            answer_commits=ended.commits,
            result={name: value for name, value in ended.json.items() if name != "run"},
            messages=list(harness.conversation(ended.json["run"])),
            book=harness.book,
        )


@dataclass(frozen=True, kw_only=True)
class Record:
    """The journal and the answers of the server at the time of a kill."""

    answered: set[str]
    cut_off: set[str]
    served: Counter[str]

    @staticmethod
    def of(harness: KillHarness) -> Record:
        assert harness.is_complete()
        if harness.run_id() is None:
            return Record(answered=set(), cut_off=set(), served=harness.answers_by_step())
        return Record(answered=harness.answered(), cut_off=harness.cut_off(), served=harness.answers_by_step())


def check_resumed_run(harness: KillHarness, undisturbed: Undisturbed, *kills: Record) -> None:
    """Resume the killed run until it ends, and compare its outcome with a run that is not killed."""
    run = harness.run_id()
    if run is None:
        assert (harness.book, harness.requests) == ([], [])
        return
    harness.resume(run)
    assert harness.is_complete()
    # no effect is lost or repeated, and the user was asked about exactly the interrupted calls
    assert sorted(harness.book) == sorted(EFFECTS)
    assert sorted(harness.asked) == sorted(set().union(*(kill.cut_off for kill in kills)))
    # a journaled answer is never requested again, any other once more for each kill
    served = harness.answers_by_step()
    for key in ("m1", "m2", "m3"):
        lost = max((kill.served[key] for kill in kills if key not in kill.answered), default=0)
        assert served[key] == 1 + lost, (key, served)
    # the outcome is that of a run that is not killed
    shown = harness.guild("show", run, "--json").json
    assert {name: shown[name] for name in ("status", "output", "error", "usage", "cost_usd")} == {
        name: undisturbed.result[name] for name in ("status", "output", "error", "usage", "cost_usd")
    }
    assert [ask["status"] for ask in shown["asks"]] == ["applied"] * (1 + len(harness.asked))
    assert list(harness.mask(shown["messages"])) == list(harness.mask(undisturbed.messages))
    replayed = harness.guild("replay", run)
    assert replayed.code == 0, replayed


DEEP = os.environ.get("HYPOTHESIS_PROFILE") == "deep"  # all points, or a sample that keeps the suite fast


def ends(commits: int) -> list[tuple[int, When]]:
    """Return the points at which to kill: each interval between two commits once, alternately at its start and its end.

    The usual suite takes every seventh of these points, to keep its time; HYPOTHESIS_PROFILE=deep takes all.
    """
    sides: tuple[When, ...] = ("before", "after")
    points = [(number, when) for number in range(1, commits + 1, 2) for when in sides]
    points += [] if commits % 2 else [(commits, "after")]
    return points if DEEP else points[::7]


def pair_sides(*names: str) -> list[tuple[str, When]]:
    """Return each name with a side, alternately. With HYPOTHESIS_PROFILE=deep, return all combinations."""
    sides: tuple[When, ...] = ("before", "after")
    every = [(name, when) for name in names for when in sides]
    return every if DEEP else [pair for number, pair in enumerate(every) if number % 4 in (0, 3)]
