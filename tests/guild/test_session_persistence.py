"""Session persistence: a meeting keeps its conversation across processes, restarts and crashes."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.testing.scripted_server import ScriptedServer
from tests.clis import claude_program
from tests.projects.meetings.harness import MeetingProject

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
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
def harness(home: Home, project: Path) -> MeetingProject:
    """Return a project in the current folder whose worker calls a provider over HTTP."""
    harness = MeetingProject.at(home, project)
    harness.worker(model="anthropic:claude-sonnet-4-5")
    return harness


def provider_environment(server: ScriptedServer, worker: str = "architect") -> dict[str, str]:
    return {"ANTHROPIC_BASE_URL": server.anthropic_url, "ANTHROPIC_API_KEY": f"script-{worker}"}


def read_messages(body: dict[str, Any]) -> list[tuple[str, str]]:
    """Return role and text of each message in a request."""
    found: list[tuple[str, str]] = []
    for message in body["messages"]:
        parts = message["content"]
        texts = [parts] if isinstance(parts, str) else [part["text"] for part in parts if part["type"] == "text"]
        found += [(message["role"], text) for text in texts]
    return found


@pytest.mark.req("WKR-20", "MTG-10")
def test_a_meeting_continues_after_the_hall_is_stopped_and_killed(
    guild_hall: GuildWithHall, harness: MeetingProject, server: ScriptedServer
) -> None:
    """Stop the first hall and kill the second, so that each command uses a new one."""
    env = provider_environment(server)
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

    requests = [read_messages(exchange.body or {}) for exchange in server.requests[before:]]
    assert requests[-1] == [
        ("user", "How do we store exports?"),
        ("assistant", "We could use Parquet."),
        ("user", "They must be small"),
        ("assistant", "Then Parquet with snappy."),
        ("assistant", "It is linked."),
        ("user", "So what do we do?"),
    ]
    assert len(requests) == 4, "answered requests are not repeated"

    closed = guild_hall("meet", "--close", id, "--json", env=provider_environment(server, "meeting-summariser"))
    assert closed.json["status"] == "closed"
    assert closed.json["linked"] == [".lore/plan.md"]
    assert "Then Parquet with snappy." in json.dumps((server.requests[-1].body or {})["messages"])
    harness.repo.fsck()


@pytest.mark.req("WKR-20", "WKR-14")
def test_a_meeting_with_claude_code_continues_after_the_hall_is_killed(
    guild_hall: GuildWithHall, harness: MeetingProject
) -> None:
    """Run each session in a new process of Claude Code and in a new hall, with the conversation so far."""
    env = {"GUILDHALL_CLAUDE": str(claude_program())}
    harness.worker(runtime="claude")
    expected = [{"expect": "How do we store exports?"}, {"expect": "They must be small"}]
    words = ["We could use Parquet.", "Then Parquet with snappy."]
    answers = [{**one, "say": text} for one, text in zip(expected, words, strict=True)]
    harness.script(answers)
    opened = guild_hall("meet", "architect", "How do we store exports?", "--output", "json", env=env)
    assert opened.code == 0, opened
    id = opened.json["meeting"]
    guild_hall.kill_hall()
    second = guild_hall("meet", id, "They must be small", "--output", "json", env=env)
    assert [one["answer"] for one in second.json["exchanges"]] == [words[1]]
    shown = guild_hall("show", second.json["run"], "--json").json
    messages = [(message["role"], message["content"]) for message in shown["messages"] if message["role"] != "system"]
    assert [text for role, text in messages if role == "assistant"] == words
    assert [text for role, text in messages if role == "user"][-1].endswith("They must be small")


@pytest.mark.req("WKR-20")
def test_a_retried_commission_has_no_conversation_of_the_first_attempt(
    guild: Guild, harness: MeetingProject, server: ScriptedServer
) -> None:
    env = provider_environment(server, "drafter")
    harness.worker("drafter", model="anthropic:claude-sonnet-4-5")
    before = len(server.requests)
    made = guild("dispatch", "drafter", "--project", "shop", "Draft the export", "--wait", "--json", env=env)
    assert made.json["status"] == "failed", made
    id = made.json["commission"]
    guild("retry", id, "--wait", "--json", env=env)
    requests = [read_messages(exchange.body or {}) for exchange in server.requests[before:]]
    first = [one for one in requests if not any(role == "assistant" for role, _ in one)]
    assert len(first) == 2, "each attempt starts over"
    assert "I give up on the draft." not in json.dumps(first)
    assert any(("assistant", "I give up on the draft.") in one for one in requests[: len(requests) // 2])


@pytest.mark.req("WKR-20")
def test_an_answer_interrupted_by_a_crash_is_completed_by_the_next_hall(
    guild_hall: GuildWithHall, harness: MeetingProject
) -> None:
    harness.worker()
    harness.script([{"say": "one"}, {"sleep": 1.5, "say": "two"}])
    id = guild_hall("meet", "architect", "first", "--output", "json").json["meeting"]
    process = guild_hall.start("meet", id, "second")
    wait_until(lambda: guild_hall("show", id, "--json").json["answering"])
    guild_hall.kill_hall()
    process.wait(10)
    assert guild_hall("wait", id, "--timeout", "10s").code in (0, 4)
    back = guild_hall("meet", id, "--output", "json", input="")
    assert back.code == 0, back
    shown = guild_hall("show", id, "--json").json
    assert [(one["user_message"], one["answer"]) for one in shown["exchanges"]] == [("first", "one"), ("second", "two")]


def wait_until(is_true: Callable[[], Any]) -> None:
    end = time.monotonic() + 10
    while not is_true():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.02)
