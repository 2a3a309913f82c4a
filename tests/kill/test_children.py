"""Kills of the process of a run at every message: the run continues as if nothing had happened.

The hall lives, so nothing may be in doubt, nobody is asked, and the record is that of a run that nobody disturbed, but
for the lines that say what happened.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.core.paths import Home
from guildhall.core.request_frame import Frame
from guildhall.hall.composition.hall import Hall
from guildhall.hall.services.embedded import EmbeddedHall
from guildhall.runs.model import Answer, RunRequest
from guildhall.runtimes.pydantic import PydanticRuntime
from guildhall.tools.definition import tool
from guildhall.tools.model import Blob, Toolbox
from tests.kill.harness import DEEP
from tests.run_processes import KillingRuntime
from tests.runs.places import put_worker
from tests.runs.trees import calls, put_answers

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.runtimes.model import Runtime
    from tests.run_processes import ForkServerLoop

MESSAGES = 58  # of the tree below; the first test holds it to what is really there
WAITING = (15, 16)  # around the call that needs approval


def enter(line: str) -> dict[str, Any]:
    return {"call": "enter", "with": {"line": line}}


BOSS = [
    calls(enter("one"), {"call": "look"}, enter("two"), {"call": "nonsense"}),
    {"say": ""},
    calls({"call": "send", "with": {"line": "letter"}}, enter("three")),
    calls({"call": "worker_call", "with": {"worker": "hand", "input_data": "go"}}, enter("four")),
    {"call": "picture"},
    {"say": "all entered"},
]
HAND = [calls(enter("five"), enter("six")), {"call": "look"}, {"say": "handed in"}]
EFFECTS = ["five", "four", "letter", "one", "six", "three", "two"]


class ForkedRunHarness:
    """A project with two workers, tools that write into a book, and a hall whose runs have processes of their own."""

    def __init__(self, fork_loop: ForkServerLoop, home: Home, project: Path) -> None:
        self.book: list[str] = []
        self._fork_loop = fork_loop
        self._home = home
        self._frame = Frame.here(project, {})
        rules = {"send": {"approval_required": True}}
        bare = {"sandboxes": None, "toolboxes": ["desk"], "base": False}
        put_worker(project, "boss", **bare, tool_rules=rules, allow_workers=["hand"])
        put_worker(project, "hand", **bare, tool_rules=None)
        put_answers(project, boss=[BOSS], hand=[HAND])

    def toolbox(self) -> Toolbox:
        @tool(runs_in="hall")
        async def enter(line: str) -> str:
            """Enter a line into the book."""
            await asyncio.sleep(0.001)
            self.book.append(line)
            await asyncio.sleep(0.001)
            return f"entered {line}"

        @tool(runs_in="hall")
        async def send(line: str) -> str:
            """Send a letter."""
            self.book.append(line)
            return "sent"

        @tool(repeatable=True, runs_in="hall")
        async def look() -> str:
            """Look at the desk."""
            return "a desk"

        @tool(repeatable=True, runs_in="hall")
        async def picture() -> Any:
            """Look at a picture."""
            return Blob(bytes(range(256)), "image/png")

        return Toolbox("desk", enter, send, look, picture)

    def run_to_end(self, runtime: Runtime) -> dict[str, Any]:
        """Return the outcome of a run in one hall, with all asks answered."""

        async def live() -> dict[str, Any]:
            hall = Hall(self._home, environ={})
            hall.runtimes.runtime_for_run = lambda *_: runtime  # with the warm parent of all tests
            face = EmbeddedHall(hall)
            try:
                stream = face.runs.run(RunRequest(worker="boss", input="go"), self._frame, [self.toolbox()])
                run = (await _follow(stream))[0].run
                for ask in await face.asks.list():
                    assert ask.kind == "approval", "no call is interrupted, because the hall was not killed"
                    await face.asks.answer(ask.id, Answer(choice="yes"))
                    await _follow(face.runs.resume(run, self._frame, [self.toolbox()]))
                details = await face.runs.get(run)
                assert (await face.runs.replay(run, self._frame)).matches
                record = [await face.runs.journal(one.id) for one in (details.run, *details.below)]
                return {"details": details, "record": record}
            finally:
                await hall.close()

        return self._fork_loop.run(live())


async def _follow(stream: Any) -> list[Any]:
    async with aclosing(stream) as events:
        return [event async for event in events]


@pytest.fixture
def harness(fork_loop: ForkServerLoop, home: Home, project: Path) -> ForkedRunHarness:
    return ForkedRunHarness(fork_loop, home, project)


@pytest.fixture(scope="session")
def undisturbed(fork_loop: ForkServerLoop, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("undisturbed-children")
    (folder / "project").mkdir()
    harness = ForkedRunHarness(fork_loop, Home(folder / "home"), folder / "project")
    runtime = KillingRuntime(fork_loop.fork_server)
    found = _facts(harness.run_to_end(runtime))
    assert sorted(harness.book) == EFFECTS
    return {**found, "count": runtime.count}


def _facts(lived: dict[str, Any]) -> dict[str, Any]:
    """Return the facts that must be equal after any deaths of processes."""
    details = lived["details"]
    return {
        "runs": [(one.worker, one.status, one.output, one.error, one.usage) for one in (details.run, *details.below)],
        "messages": details.messages,
        "asks": [(ask.kind, ask.status) for ask in details.asks],
        "record": [
            sorted(_plain(entry) for entry in entries if entry.kind != "crashed") for entries in lived["record"]
        ],
    }


def _plain(entry: Any) -> str:
    """Return an entry without times, ids and paths."""
    data = entry.data.to_record()
    for name in ("ask", "by", "owner", "reason"):
        data.pop(name, None)
    if entry.kind in {"model_answered", "assembled"}:
        data = {"parts": data.get("response", {}).get("parts"), "tools": data.get("tools")}
    if entry.kind == "model_asked":
        data.pop("answers")
    return f"{entry.kind} {entry.key} {data}"


def test_the_sweep_goes_over_every_message(undisturbed: dict[str, Any]) -> None:
    assert undisturbed["count"] == MESSAGES
    assert [run[:3] for run in undisturbed["runs"]] == [
        ("boss", "completed", "all entered"),
        ("hand", "completed", "handed in"),
    ]
    assert undisturbed["asks"] == [("approval", "applied")]


def test_a_run_in_a_process_is_the_run_that_it_is_without(
    undisturbed: dict[str, Any], harness: ForkedRunHarness
) -> None:
    facts = _facts(harness.run_to_end(PydanticRuntime()))
    assert facts == {name: fact for name, fact in undisturbed.items() if name != "count"}


@pytest.mark.req("AW-21", "X-2")
@pytest.mark.parametrize("number", range(1, MESSAGES + 1, 1 if DEEP else 5))
def test_killed_at_a_message(undisturbed: dict[str, Any], harness: ForkedRunHarness, number: int) -> None:
    lived = harness.run_to_end(KillingRuntime(harness._fork_loop.fork_server, number))
    crashes = [entry for entries in lived["record"] for entry in entries if entry.kind == "crashed"]
    # A process that dies while all its calls wait for the user would have been stopped anyway.
    assert [entry.data.code for entry in crashes] == ([] if number in WAITING else ["runtime_crashed"])
    assert all("SIGKILL" in entry.data.message for entry in crashes)
    facts = _facts(lived)
    assert sorted(harness.book) == EFFECTS
    assert facts == {name: fact for name, fact in undisturbed.items() if name != "count"}


def test_killed_again_and_again(undisturbed: dict[str, Any], harness: ForkedRunHarness) -> None:
    lived = harness.run_to_end(KillingRuntime(harness._fork_loop.fork_server, 3, 20))
    assert sum(entry.kind == "crashed" for entries in lived["record"] for entry in entries) == 2
    assert _facts(lived) == {name: fact for name, fact in undisturbed.items() if name != "count"}
