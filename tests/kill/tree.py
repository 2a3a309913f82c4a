"""The harness of the kill tests with a tree of runs: one worker calls two others side by side, and each has effects.

The two that are called get the same answers from the server; what they do, and what they are asked, bears their names.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.kill.harness import TOOLBOX, Ended, KillHarness, Record

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from guildhall.testing.scripted_server import Exchange

CALLED = ("clerk", "porter")
EFFECTS = tuple(f"{who} {line}" for who in CALLED for line in ("one", "letter"))
SCRIPT = """
workers:
  boss:
    - - calls:
          - {call: worker_call, with: {worker: clerk, input_data: clerk}}
          - {call: worker_call, with: {worker: porter, input_data: porter}}
        usage: {input: 1000, output: 100}
      - {say: all handed in, usage: {input: 2000, output: 200}}
  called:
    - - calls:
          - {call: enter, with: {line: one}}
          - {call: send, with: {line: letter}}
        usage: {input: 3000, output: 300}
      - {say: handed in, usage: {input: 4000, output: 400}}
"""
BOSS = """name: boss
instructions: Have it handed in.
model: openai-chat:gpt-4o
allow_workers: [clerk, porter]
"""
WORKER = """name: @WHO@
instructions: Enter the requested lines.
model: anthropic:claude-sonnet-4-5
toolboxes: [@WHO@]
sandboxes:
  desk: {path: ./desk, mode: rw}
tool_rules:
  send: {approval_required: true}
"""
LINE_OF = {"m1/call_0_0": "one", "m1/call_0_1": "letter"}


def write_project(project: Path, home: Path) -> None:
    """Write the three workers, and a toolbox for each callee."""
    desk = project / "desk"
    desk.mkdir()
    (project / "workers").mkdir()
    (project / "workers" / "boss.yaml").write_text(BOSS)
    (home / "toolboxes").mkdir(parents=True)
    for who in CALLED:
        (project / "workers" / f"{who}.yaml").write_text(WORKER.replace("@WHO@", who))
        named = TOOLBOX.replace("return _effect(line)", f'return _effect("{who} " + line)')
        (home / "toolboxes" / f"{who}.py").write_text(named.replace("@DESK@", repr(str(desk))))


@dataclass(kw_only=True)
class TreeHarness(KillHarness):
    """One tree of runs; calls and model calls are named with the worker whose they are: `clerk m1/call_0_0`."""

    @property
    def environment(self) -> Mapping[str, str]:
        return {
            **super().environment,
            "ANTHROPIC_API_KEY": "script-called",
            "OPENAI_BASE_URL": self.server.openai_url,
            "OPENAI_API_KEY": "script-boss",
        }

    def start(self) -> Ended:
        return self.guild("run", "boss", "go", "--output", "json")

    def resume(self, run: str, *, unknown: str | None = None) -> None:
        for _ in range(8):
            if self.rows("SELECT status FROM runs WHERE id = ?", run)[0][0] == "completed":
                return
            ended = self.guild("resume", run, "--output", "json")
            while ended.code == 4 and (asks := ended.json["asks"]):
                ended = self.answer(asks[0], unknown)
            assert ended.code in (0, 4), ended
        raise AssertionError("the tree does not come to an end")

    def answer(self, ask: Mapping[str, Any], unknown: str | None = None) -> Ended:
        choice = "yes"
        if ask["kind"] == "interrupted_call":
            query = "SELECT worker, key FROM asks JOIN runs ON runs.id = asks.run WHERE asks.id = ?"
            who, key = self.rows(query, ask["ask"])[0]
            choice = unknown or ("done" if f"{who} {LINE_OF[key]}" in self.book else "again")
            self.asked.append(f"{who} {key}")
            if choice == "done":
                self.said_done.append(f"{who} {key}")
        return self.guild("answer", ask["ask"], choice, "--output", "json")

    # the witnesses

    def run_id(self) -> str | None:
        if super().run_id() is None:
            return None
        return self.rows("SELECT id FROM runs WHERE parent IS NULL")[0][0]

    def entries(self) -> list[tuple[int, str, str | None, Any]]:
        query = "SELECT seq, j.kind, worker, key, data FROM journal j JOIN runs ON runs.id = j.run ORDER BY run, seq"
        return [
            (seq, kind, f"{who} {key}" if key else None, json.loads(data))
            for seq, kind, who, key, data in self.rows(query)
        ]

    def cut_off(self) -> set[str]:
        return {key for key in super().cut_off() if not key.startswith("boss ")}

    def answers_by_step(self) -> Counter[str]:
        return Counter(_step(exchange) for exchange in self.requests if exchange.answered)

    def outcome(self, run: str) -> dict[str, Any]:
        """Return every run with its outcome and usage, and the conversation of the root run."""
        top = self.guild("show", run, "--json").json
        facts = ("status", "output", "error", "usage", "cost_usd")
        facts_by_worker: dict[str, Any] = {
            one["worker"]: {name: one[name] for name in facts} for one in (top, *top["below"])
        }
        facts_by_worker["messages"] = top["messages"]
        facts_by_worker["asks"] = Counter((ask["kind"], ask["status"]) for ask in top["asks"])
        return facts_by_worker


def _step(exchange: Exchange) -> str:
    """Return the worker and the number of a model call, from the request at the server."""
    messages: list[dict[str, Any]] = (exchange.body or {})["messages"]
    said = sum(message["role"] == "assistant" for message in messages)
    first = next(message["content"] for message in messages if message["role"] == "user")
    who = next((one for one in CALLED if one in str(first)), "boss")
    return f"{who} m{said + 1}"


@dataclass(frozen=True, kw_only=True)
class UndisturbedTree:
    """A tree that is not killed: the commits of its first and last command, and its outcome."""

    run_commits: int
    answer_commits: int
    outcome: Mapping[str, Any]
    served: Counter[str]

    @staticmethod
    def of(harness: TreeHarness) -> UndisturbedTree:
        started = harness.start()
        assert started.code == 4, started
        first, second = started.json["asks"]
        assert harness.answer(first).code == 4
        ended = harness.answer(second)
        assert ended.code == 0, ended
        assert sorted(harness.book) == sorted(EFFECTS)
        return UndisturbedTree(
            run_commits=started.commits,
            answer_commits=ended.commits,
            outcome=harness.outcome(ended.json["run"]),
            served=harness.answers_by_step(),
        )


def check_resumed_run(harness: TreeHarness, undisturbed: UndisturbedTree, *kills: Record) -> None:
    """Resume the killed tree until it ends, and compare its outcome with a tree that is not killed."""
    run = harness.run_id()
    if run is None:
        assert (harness.book, harness.requests) == ([], [])
        return
    harness.resume(run)
    assert harness.is_complete()
    # no effect is lost, none is there twice; a person was asked about those that were cut off, and about no other
    assert sorted(harness.book) == sorted(EFFECTS)
    assert sorted(harness.asked) == sorted(set().union(*(kill.cut_off for kill in kills)))
    # each call has made one run, and an answer on record is never asked for again
    assert harness.rows("SELECT count(*) FROM runs") == [(1 + len(CALLED),)]
    served = harness.answers_by_step()
    for key, count in undisturbed.served.items():
        lost = max((kill.served[key] for kill in kills if key not in kill.answered), default=0)
        assert served[key] == count + lost, (key, served)
    # and what came out is what comes out of a tree that nobody kills
    outcome = harness.outcome(run)
    asked = Counter({("interrupted_call", "applied"): len(harness.asked)})
    assert outcome.pop("asks") == undisturbed.outcome["asks"] + asked
    assert outcome == {name: fact for name, fact in undisturbed.outcome.items() if name != "asks"}
    replayed = harness.guild("replay", run)
    assert replayed.code == 0, replayed
