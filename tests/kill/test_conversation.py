"""Kills of a conversation at any point: it continues without losing or repeating a message."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from guildhall.runtimes.catalog import RUNTIMES
from guildhall.testing.scripted_server import ScriptedServer
from tests.clis import claude_program, codex_program
from tests.conformance.bench import WORKER, Bench, write
from tests.kill.harness import DEEP, KillHarness, ends, write_project
from tests.run_processes import KillingRuntime

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
    from pathlib import Path

    from guildhall.core.paths import Home
    from tests.kill.harness import Driver, Ended, When
    from tests.run_processes import ForkServerLoop

SCRIPT = """
workers:
  clerk:
    - - {say: I listen.}
      - {say: I look., call: look, with: {}}
      - {say: Seen.}
      - {say: Bye.}
"""
WORDS = ("Look around.", "Good bye.")
MESSAGES = 16  # at the doors
COMMITS = 22  # of a conversation that nobody disturbs; the first test holds it to what is really there
WHOLE = {"status": "waiting", "reason": "person", "same": True}


@pytest.fixture(scope="module")
def conversation_server(tmp_path_factory: pytest.TempPathFactory) -> Generator[ScriptedServer]:
    script = tmp_path_factory.mktemp("talk") / "answers.yaml"
    script.write_text(SCRIPT)
    with ScriptedServer(script) as server:
        yield server


@pytest.fixture
def conversation(
    project: Path, home: Home, driver: Driver, conversation_server: ScriptedServer
) -> Generator[KillHarness]:
    write_project(project, home.path)
    yield KillHarness(project=project, home=home.path, driver=driver, server=conversation_server)
    driver.settle()


def hold(harness: KillHarness) -> Ended:
    ended = harness.guild(*WORDS, program="tests.kill.conversation")
    assert ended.code == 0, ended
    return ended


@dataclass(kw_only=True)
class ProgramHarness(KillHarness):
    """The same with a program that executes the runs."""

    more: dict[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> Mapping[str, str]:
        return {**super().environment, **self.more}


def said(harness: KillHarness) -> list[tuple[str, str | None]]:
    """Return the recorded conversation, in order."""
    kinds = ("said", "model_answered", "tool_ended")
    return [(kind, key) for _, kind, key, _ in harness.entries() if kind in kinds]


def test_the_sweep_goes_over_every_commit(conversation: KillHarness) -> None:
    ended = hold(conversation)
    assert (ended.json, ended.commits) == (WHOLE, COMMITS)


@pytest.mark.req("X-2")
@pytest.mark.parametrize(("number", "when"), ends(COMMITS))
def test_killed_at_a_commit_of_a_conversation(conversation: KillHarness, number: int, when: When) -> None:
    assert conversation.guild_until(number, when, *WORDS, program="tests.kill.conversation") is None
    answered = conversation.answered() if conversation.run_id() else set[str]()
    served = conversation.answers_by_step()
    check_resumed_conversation(conversation)
    # an answer on record is never asked for again
    for key, times in conversation.answers_by_step().items():
        assert times == 1 + (0 if key in answered else served[key]), (key, times)
    last = (conversation.requests[-1].body or {})["messages"]
    shown = [(one["role"], part["text"]) for one in last for part in _parts(one["content"]) if "text" in part]
    assert shown == [
        ("user", "Hi."),
        ("assistant", "I listen."),
        ("user", WORDS[0]),
        ("assistant", "I look."),
        ("assistant", "Seen."),
        ("user", WORDS[1]),
    ]


@pytest.mark.req("X-2")
@pytest.mark.parametrize(
    ("runtime", "number"),
    [("claude", 5), ("claude", 12), ("codex", 12)],
    ids=["claude, while it listens", "claude, in a turn", "codex, in a turn"],
)
def test_a_hall_is_killed_with_a_program(
    project: Path, home: Home, driver: Driver, conversation_server: ScriptedServer, runtime: str, number: int
) -> None:
    write_project(project, home.path)
    worker = project / "workers" / "clerk.yaml"
    text = worker.read_text().replace("anthropic:claude-sonnet-4-5", "script:answers.yaml")
    worker.write_text(f"{text}runtime: {runtime}\n")
    (project / "answers.yaml").write_text(SCRIPT)
    program = {"claude": claude_program, "codex": codex_program}[runtime]
    harness = ProgramHarness(project=project, home=home.path, driver=driver, server=conversation_server)
    harness.more = {str(RUNTIMES[runtime].variable): str(program())}
    try:
        assert harness.guild_until(number, "after", *WORDS, program="tests.kill.conversation") is None
        check_resumed_conversation(harness)
    finally:
        driver.settle()


@pytest.mark.req("AW-21", "X-2")
@pytest.mark.parametrize("number", range(1, MESSAGES + 1, 1 if DEEP else 3))
def test_its_process_is_killed_at_a_message(fork_loop: ForkServerLoop, tmp_path: Path, number: int) -> None:
    killing = KillingRuntime(fork_loop.fork_server, number)
    bench = Bench(tmp_path, "pydantic", {}, own=killing)
    bench.write_worker({"say": "I listen."}, write("a.md"), {"say": "Seen."}, {"say": "Bye."})

    async def run_conversation() -> list[str | None]:
        async with bench.conversation(held=True) as table:
            await table.start(WORKER, "Hi.")
            for words in WORDS:
                await table.send(words)
            if number == MESSAGES:
                assert killing.count == MESSAGES - 1, "the last one is what nobody says"
            else:
                assert [entry.data.code for entry in table.entries("crashed")] == ["runtime_crashed"]
            assert [entry.data.words for entry in table.entries("said")] == list(WORDS)
            return [entry.key for entry in table.entries("model_answered", "said", "tool_ended")]

    assert fork_loop.run(run_conversation()) == ["m1", "u1", "m2", "m2/call_1_0", "m3", "u2", "m4"]


def check_resumed_conversation(conversation: KillHarness) -> None:
    """Check that every message exists once, in order."""
    assert hold(conversation).json == WHOLE
    assert conversation.is_complete()
    looked = next(key for kind, key in said(conversation) if kind == "tool_ended")
    assert said(conversation) == [
        ("model_answered", "m1"),
        ("said", "u1"),
        ("model_answered", "m2"),
        ("tool_ended", looked),
        ("model_answered", "m3"),
        ("said", "u2"),
        ("model_answered", "m4"),
    ]
    words = [data["words"] for _, kind, _, data in conversation.entries() if kind == "said"]
    assert words == list(WORDS)


def _parts(content: object) -> list[dict[str, str]]:
    return content if isinstance(content, list) else [{"text": str(content)}]
