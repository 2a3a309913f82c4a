"""Repeated calls are noted and end the run at a limit. A tool call in text is not an output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.runs.places import DONE, WRITE, journal, put_script, put_worker

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Guild

MAX_REPEATS = 3
LIST = {"call": "sandbox_list", "with": {"sandbox": "notes"}}
UNKNOWN = {"call": "sandbox_read_text", "with": {"sandbox": "guild", "path": "a.md"}}
FENCED = '```json\n{"name": "sandbox_list", "arguments": {"sandbox": "notes"}}\n```'


def tool_results(guild: Guild, run: str) -> list[str]:
    shown = guild("show", run, "--json").json
    return [message["content"] for message in shown["messages"] if message["role"] == "tool"]


@pytest.mark.parametrize("repeated", [LIST, UNKNOWN, {"call": "no_tool", "with": {}}])
def test_equal_calls_in_a_row_are_noted_and_end_the_run(guild: Guild, project: Path, repeated: dict[str, Any]) -> None:
    put_worker(project, limits={"max_repeats": MAX_REPEATS}, tool_rules=None)
    put_script(project, repeated, WRITE, *[repeated] * (MAX_REPEATS + 1), repeated, DONE)
    ran = guild("run", "scribe", "go", "--output", "json")
    run = ran.json["run"]
    assert (ran.code, ran.json["error"]["limit"]) == (5, "max_repeats")
    assert "max_repeats: the run has repeated a call 3 times in a row, with the same result each time" in ran.err
    ends = [entry["data"] for entry in journal(guild, run) if entry["kind"] in ("tool_ended", "tool_refused")]
    assert [end.get("repeats", 0) for end in ends] == [0, 0, 0, 1, 2, 3], "a different call starts a new count"
    assert [end["result"]["content"][-1]["text"].startswith("[Call ") for end in ends] == [False] * 3 + [True] * 3
    assert guild("replay", run).code == 0
    resumed = guild("resume", run, "--output", "json")
    assert (resumed.code, resumed.json["output"]) == (0, "done"), resumed
    assert "[Call " not in tool_results(guild, run)[-1], "the resume of a failed run starts a new count"
    assert guild("replay", run).code == 0


def test_equal_calls_with_other_results_are_not_repeats(guild: Guild, project: Path) -> None:
    put_worker(project, limits={"max_repeats": 1}, tools=["Bash"], sandboxes=None, tool_rules=None)
    clock = {"call": "Bash", "with": {"command": "cat /proc/sys/kernel/random/uuid"}}
    put_script(project, clock, clock, clock, DONE)
    ran = guild("run", "scribe", "go", "--output", "json")
    assert (ran.code, ran.json["output"]) == (0, "done"), ran


@pytest.mark.parametrize(
    "text",
    [
        FENCED,
        FENCED.replace("```json", "```").replace("arguments", "parameters"),
        '<tool_call>{"name": "sandbox_list", "arguments": {}}</tool_call>',
        '{"tool_calls": [{"function": {"name": "sandbox_list", "arguments": "{}"}}]}',
        '[{"tool": "sandbox_list", "input": {}}]'.join(("```tool_code\n", "\n```")),
    ],
)
def test_a_tool_call_in_text_is_requested_again(guild: Guild, project: Path, text: str) -> None:
    put_worker(project, tool_rules=None)
    put_script(project, {"say": text}, {"expect": "A tool call in text is not executed", **LIST}, DONE)
    ran = guild("run", "scribe", "go", "--output", "json")
    assert (ran.code, ran.json["output"]) == (0, "done"), ran
    assert guild("replay", ran.json["run"]).code == 0


def test_the_third_tool_call_in_text_is_the_output(guild: Guild, project: Path) -> None:
    put_worker(project, tool_rules=None)
    put_script(project, *[{"say": FENCED}] * 3)
    ran = guild("run", "scribe", "go", "--output", "json")
    assert (ran.code, ran.json["output"]) == (0, FENCED), ran
    other = FENCED.replace("sandbox_list", "another_tool")
    put_script(project, {"say": other})
    assert guild("run", "scribe", "go", "--output", "json").json["output"] == other, "it is JSON about something else"


@pytest.mark.req("WKR-9")
def test_the_model_receives_the_useful_tools(guild: Guild, project: Path) -> None:
    """Own tools come first. Forbidden tools are hidden and stay forbidden. Memory can be read when it has entries."""
    fields: dict[str, Any] = {"tools": ["Read", "Bash"], "tool_rules": {"Bash": {"allowed": False}}}
    put_worker(project, **fields)
    put_script(
        project,
        {"call": "Bash", "with": {"command": "true"}},
        {"expect": "Not permitted", "call": "memory_write", "with": {"scope": "worker", "key": "a", "content": "b"}},
        DONE,
    )

    def run_and_list_tools() -> list[str]:
        ran = guild("run", "scribe", "go", "--output", "json")
        assert ran.code == 0, ran
        assert guild("replay", ran.json["run"]).code == 0
        return [tool["name"] for tool in journal(guild, ran.json["run"])[0]["data"]["tools"]]

    own = ["Read", "sandbox_list", "sandbox_read_text", "sandbox_write_text"]
    planned = guild("plan", "scribe").out
    assert "forbidden: Bash" in planned
    assert "Run a shell command" not in planned
    assert run_and_list_tools() == [*own, "memory_write"]
    put_script(project, DONE)
    assert run_and_list_tools() == [*own, "memory_read", "memory_write", "memory_list"]
    put_worker(project, **fields, base=True)
    assert run_and_list_tools() == [*own, "memory_read", "memory_write", "memory_list", "record_decision"]
    put_worker(project, **fields, base=False)
    assert run_and_list_tools() == own
