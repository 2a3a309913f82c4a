"""Session persistence: a meeting continues with the whole conversation after restarts and crashes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.testing.scripted_server import ScriptedServer
from tests.clis import claude_program
from tests.projects.meetings.parlour import Parlour

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from guildhall.core.paths import Home
    from tests.conftest import Guild, GuildWithHall

SCRIPT = """
workers:
  architect:
    - - say: We could use Parquet.
      - say: Then Parquet with snappy.
        call: link_artifact
        with: {path: .lore/plan.md}
      - say: It is linked.
      - say: Agreed on Parquet.
  drafter:
    - - say: I give up on the draft.
        call: record_decision
        with: {question: how, decision: not at all, reasoning: tired}
      - say: That is all.
  meeting-summariser:
    - - say: They agreed on Parquet.
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[ScriptedServer]:
    script = tmp_path_factory.mktemp("script") / "answers.yaml"
    script.write_text(SCRIPT)
    with ScriptedServer(script) as server:
        yield server


@pytest.fixture
def parlour(home: Home, project: Path) -> Parlour:
    """Create a project in the current folder whose worker calls a model over HTTP."""
    parlour = Parlour.at(home, project)
    parlour.worker(model="anthropic:claude-sonnet-4-5")
    return parlour


def environment(server: ScriptedServer, worker: str = "architect") -> dict[str, str]:
    return {"ANTHROPIC_BASE_URL": server.anthropic_url, "ANTHROPIC_API_KEY": f"script-{worker}"}


def spoken(body: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the conversation that the model saw, as pairs of role and text."""
    found: list[tuple[str, str]] = []
    for message in body["messages"]:
        parts = message["content"]
        texts = [parts] if isinstance(parts, str) else [part["text"] for part in parts if part["type"] == "text"]
        found += [(message["role"], text) for text in texts]
    return found


@pytest.mark.req("WKR-20", "MTG-10")
def test_a_meeting_over_three_processes_with_the_hall_stopped_and_killed(
    guild_hall: GuildWithHall, parlour: Parlour, server: ScriptedServer
) -> None:
    """Run each command in a new hall: the first was stopped, the second killed."""
    env = environment(server)
    before = len(server.requests)
    opened = guild_hall("meet", "architect", "How do we store exports?", "--output", "json", env=env)
    assert opened.code == 0, opened
    id = opened.json["meeting"]
    assert guild_hall("hall", "stop").code == 0

    second = guild_hall("meet", id, "They must be small", env=env)
    assert second.out == "Then Parquet with snappy.\n\nIt is linked.\n"
    guild_hall.kill_hall()

    third = guild_hall("meet", id, "--say", "So what do we do?", "--output", "json", env=env)
    assert [one["answer"] for one in third.json["exchanges"]] == ["Agreed on Parquet."]
    assert third.json["session_count"] == 1

    asked = [spoken(exchange.body or {}) for exchange in server.requests[before:]]
    assert asked[-1] == [
        ("user", "How do we store exports?"),
        ("assistant", "We could use Parquet."),
        ("user", "They must be small"),
        ("assistant", "Then Parquet with snappy."),
        ("assistant", "It is linked."),
        ("user", "So what do we do?"),
    ]
    assert len(asked) == 4, "what was answered is not asked again"

    closed = guild_hall("meet", "--close", id, "--json", env=environment(server, "meeting-summariser"))
    assert closed.json["status"] == "closed"
    assert closed.json["linked"] == [".lore/plan.md"]
    assert "Then Parquet with snappy." in json.dumps((server.requests[-1].body or {})["messages"])
    parlour.repo.fsck()


@pytest.mark.req("WKR-20", "WKR-14")
def test_the_same_with_the_real_claude(guild_hall: GuildWithHall, parlour: Parlour) -> None:
    """Check that each session, a new process in a new hall, receives the conversation so far."""
    env = {"GUILDHALL_CLAUDE": str(claude_program())}
    parlour.worker(runtime="claude")
    expected = [{"expect": "How do we store exports?"}, {"expect": "They must be small"}]
    words = ["We could use Parquet.", "Then Parquet with snappy."]
    answers = [{**one, "say": text} for one, text in zip(expected, words, strict=True)]
    parlour.script(answers)
    opened = guild_hall("meet", "architect", "How do we store exports?", "--output", "json", env=env)
    assert opened.code == 0, opened
    id = opened.json["meeting"]
    guild_hall.kill_hall()
    second = guild_hall("meet", id, "They must be small", "--output", "json", env=env)
    assert [one["answer"] for one in second.json["exchanges"]] == [words[1]]
    shown = guild_hall("show", second.json["run"], "--json").json
    said = [(message["role"], message["content"]) for message in shown["messages"] if message["role"] != "system"]
    assert [text for role, text in said if role == "assistant"] == words
    assert [text for role, text in said if role == "user"][-1].endswith("They must be small")


@pytest.mark.req("WKR-20")
def test_a_commission_that_is_dispatched_again_knows_nothing_of_before(
    guild: Guild, parlour: Parlour, server: ScriptedServer
) -> None:
    env = environment(server, "drafter")
    parlour.worker("drafter", model="anthropic:claude-sonnet-4-5")
    before = len(server.requests)
    made = guild("dispatch", "drafter", "--project", "shop", "Draft the export", "--wait", "--json", env=env)
    assert made.json["status"] == "failed", made
    id = made.json["commission"]
    guild("retry", id, "--wait", "--json", env=env)
    asked = [spoken(exchange.body or {}) for exchange in server.requests[before:]]
    first = [one for one in asked if not any(role == "assistant" for role, _ in one)]
    assert len(first) == 2, "each attempt starts with an empty conversation"
    assert "I give up on the draft." not in json.dumps(first)
    assert any(("assistant", "I give up on the draft.") in one for one in asked[: len(asked) // 2])


@pytest.mark.req("WKR-20")
def test_killed_in_the_middle_of_an_answer_it_is_answered_by_itself_at_the_next_start(
    guild_hall: GuildWithHall, parlour: Parlour
) -> None:
    parlour.worker()
    parlour.script([{"say": "one"}, {"sleep": 1.5, "say": "two"}])
    id = guild_hall("meet", "architect", "first", "--output", "json").json["meeting"]
    process = guild_hall.start("meet", id, "second")
    _until(lambda: guild_hall("show", id, "--json").json["answering"])
    guild_hall.kill_hall()
    process.wait(10)
    assert guild_hall("wait", id, "--timeout", "10s").code in (0, 4)
    back = guild_hall("meet", id, "--output", "json", input="")
    assert back.code == 0, back
    shown = guild_hall("show", id, "--json").json
    assert [(one["words"], one["answer"]) for one in shown["exchanges"]] == [("first", "one"), ("second", "two")]


def _until(true: Any) -> None:
    import time

    end = time.monotonic() + 10
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)
