"""The real Codex as a worker's runtime, through the real command, against a script."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING

import pytest

from guildhall.testing.scripted_server import ScriptedServer
from tests.clis import codex_program
from tests.hall.offices import Office, write

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Guild

SANDBOX = ["sandbox_list", "sandbox_read_text", "sandbox_write_text"]


@pytest.fixture
def office(guild: Guild, project: Path) -> Office:
    return Office(guild, project, "codex", codex_program())


@pytest.mark.req("AW-22")
def test_codex_answers_and_calls_tools_several_at_once(office: Office) -> None:
    several = [write("a.txt", "one"), write("b.txt", "two")]
    office.put(
        [{"say": "Writing.", "calls": several}, {"expect": r"(?s)\AMade a.txt[^\n]*\nMade b.txt", "say": "All done."}]
    )
    ran = office.run()
    assert (ran.code, ran.out) == (0, "All done.\n"), ran.err
    assert office.notes() == {"a.txt": "one", "b.txt": "two"}


def test_what_the_model_is_shown_is_the_runs_and_nothing_else(office: Office) -> None:
    office.put(
        [{"expect": r"\A/help @a.txt \$skill {env:HOME}\Z", "expect_system": r"\AYou are Bob\.", "say": "Seen."}]
    )
    ran = office.run(task="/help @a.txt $skill {env:HOME}")
    assert (ran.code, ran.out) == (0, "Seen.\n"), ran.err


def test_an_answer_that_does_not_fit_is_asked_for_again(office: Office) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    (office.project / "n.json").write_text(json.dumps(schema))
    office.put(
        [{"say": "Seven."}, {"expect": "final_result", "output": {"n": 7}}],
        output_schema_ref="n.json",
    )
    ran = office.run()
    assert (ran.code, ran.out.split()) == (0, ["{", '"n":', "7", "}"]), ran.err


@pytest.mark.parametrize("victim", ["the program", "the hall"])
def test_killed_it_goes_on_where_it_was_and_does_nothing_twice(office: Office, victim: str) -> None:
    office.put([write("a.txt", "one"), {"expect": "a.txt", "sleep": 1, "say": "All done."}])
    process, run = office.start("tool_result")
    (office.project / "notes" / "a.txt").write_text("changed since")
    if victim == "the program":
        office.kill_program(process)
        out, err = process.communicate(timeout=60)
        assert json.loads(out.splitlines()[-1])["output"] == "All done.", err
        assert len(office.kinds(run, "crashed")) == 1
    else:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)
        ran = office.resume(run)
        assert (ran.code, ran.out) == (0, "All done.\n"), ran.err
    assert office.notes() == {"a.txt": "changed since"}
    assert len(office.kinds(run, "tool_started")) == 1


def test_the_provider_is_shown_the_runs_prompt_and_tools_and_nothing_else(office: Office, tmp_path: Path) -> None:
    script = tmp_path / "provider.yaml"
    script.write_text(json.dumps({"workers": {"bob": [[write("a.txt", "one"), {"say": "All done."}]]}}))
    office.put([], model="openai:gpt-5.5")
    with ScriptedServer(script) as server:
        office.env |= {"OPENAI_BASE_URL": server.openai_url, "OPENAI_API_KEY": "script-bob"}
        ran = office.run()
    assert (ran.code, ran.out) == (0, "All done.\n"), ran.err
    assert office.notes() == {"a.txt": "one"}
    first, second = (exchange.body or {} for exchange in server.requests)
    assert first["model"] == "gpt-5.5"
    [space] = first["tools"]
    assert (space["type"], space["name"]) == ("namespace", "mcp__tools")
    assert [tool["name"] for tool in space["tools"]] == SANDBOX
    [said] = first["input"]
    assert (said["role"], said["content"]) == ("user", [{"type": "input_text", "text": "Go."}])
    assert first["instructions"].startswith("You are Bob.")
    assert "odex" not in str(first)
    assert "Wall time" not in str(second["input"])
    assert "GUILDHALL" not in str(first)
    assert server.answered_twice == []


def test_an_approval_is_waited_for_without_it_and_the_run_can_be_played_again(office: Office) -> None:
    office.put(
        [write("a.txt", "one"), {"expect": r"\AMade a.txt", "say": "All done."}],
        tool_rules={"fs.write": {"approval_required": True}},
    )
    ran = office.run("--output", "json")
    assert (ran.code, ran.json["status"], office.notes()) == (4, "waiting", {}), ran.err
    run = ran.json["run"]
    answered = office.guild("answer", ran.json["asks"][0]["ask"], "yes", env=office.env)
    assert answered.code == 0, answered.err
    assert office.guild("show", run, "--json", env=office.env).json["status"] == "completed", answered.err
    assert office.notes() == {"a.txt": "one"}
    (office.project / "notes" / "a.txt").unlink()
    played = office.guild("replay", run, env=office.env)
    assert played.code == 0, played.err
    assert office.notes() == {}
