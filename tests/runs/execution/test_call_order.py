"""Calls of one answer through `guild run`: changes take effect in order, live, replayed and as a recorded test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.runs.places import put_script, put_worker

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Guild

LINES = 6


def run_answer(guild: Guild, project: Path, *calls: dict[str, Any], tools: list[str]) -> str:
    """Run a worker whose model makes all calls in one answer. Return the id of the run."""
    put_worker(project, tool_rules=None, tools=tools, sandboxes={"out": {"path": ".", "mode": "rw"}})
    put_script(project, {"calls": list(calls)}, {"say": "done"})
    ran = guild("run", "scribe", "go", "--output", "json")
    assert ran.code == 0, ran
    return ran.json["run"]


def edit(number: int) -> dict[str, Any]:
    return {
        "call": "Edit",
        "with": {"file_path": "e.txt", "old_string": f"line {number}.", "new_string": f"LINE {number}."},
    }


@pytest.mark.req("X-20")
def test_all_edits_of_one_answer_are_kept(guild: Guild, project: Path) -> None:
    path = project / "e.txt"
    path.write_text("".join(f"line {number}.\n" for number in range(LINES)))
    run = run_answer(guild, project, *map(edit, range(LINES)), tools=["Edit"])
    assert path.read_text() == "".join(f"LINE {number}.\n" for number in range(LINES))
    assert guild("replay", run).code == 0


@pytest.mark.req("X-20")
def test_a_program_finds_the_file_that_the_call_before_it_wrote(guild: Guild, project: Path) -> None:
    write = {"call": "Write", "with": {"file_path": "b.sh", "content": "echo from the file"}}
    bash = {"call": "Bash", "with": {"command": "sh b.sh > out.txt"}}
    run = run_answer(guild, project, write, bash, tools=["Write", "Bash"])
    assert (project / "out.txt").read_text() == "from the file\n"
    assert guild("replay", run).code == 0


@pytest.mark.req("X-17", "X-20")
def test_a_recorded_run_with_several_writes_in_one_answer_passes_each_time(guild: Guild, project: Path) -> None:
    def write(text: str) -> dict[str, Any]:
        return {"call": "Write", "with": {"file_path": "a.txt", "content": text}}

    read = {"call": "Read", "with": {"file_path": "a.txt"}}
    run = run_answer(guild, project, write("first"), read, write("second"), read, tools=["Read", "Write"])
    assert (project / "a.txt").read_text() == "second"
    (project / "a.txt").unlink()
    assert guild("script", run, "--out", "tests/order.yaml").code == 0
    for _ in range(3):
        tested = guild("test", "tests/order.yaml")
        assert tested.code == 0, tested


@pytest.mark.req("X-20")
def test_the_last_memory_entry_of_one_answer_is_kept(guild: Guild, project: Path) -> None:
    def remember(text: str) -> dict[str, Any]:
        return {"call": "memory_write", "with": {"scope": "worker", "key": "note", "content": text}}

    run_answer(guild, project, *map(remember, ("first", "second", "third")), tools=[])
    assert "third" in guild("memory", "show", "note", "--worker", "scribe").out


@pytest.mark.req("X-20")
def test_a_resumed_run_continues_in_the_order_of_the_answer(guild: Guild, project: Path) -> None:
    put_worker(
        project,
        tools=["Bash", "Write"],
        tool_rules={"Write": {"approval_required": True}},
        sandboxes={"out": {"path": ".", "mode": "rw"}},
    )
    log = {"call": "Bash", "with": {"command": "ls >> log.txt"}}
    write = {"call": "Write", "with": {"file_path": "new.txt", "content": "x"}}
    put_script(project, {"calls": [log, write, log]}, {"say": "done"})
    ran = guild("run", "scribe", "go", "--output", "json")
    assert ran.code == 4, ran
    before = (project / "log.txt").read_text()
    assert "new.txt" not in before
    assert guild("answer", ran.json["asks"][0]["ask"], "yes").code == 0
    assert "new.txt" in (project / "log.txt").read_text().removeprefix(before)
    assert guild("replay", ran.json["run"]).code == 0
