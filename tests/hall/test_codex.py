"""Codex as a runtime, with the real program and command, and a scripted model."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from guildhall.testing.scripted_server import ScriptedServer
from tests.clis import codex_program
from tests.hall.runtime_project import RuntimeProject, write

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Guild

TASK = "/help @a.txt $skill {env:HOME}"
SANDBOX = ["sandbox_list", "sandbox_read_text", "sandbox_write_text"]


@pytest.fixture
def runtime_project(guild: Guild, project: Path) -> RuntimeProject:
    return RuntimeProject(guild, project, "codex", codex_program())


def test_a_killed_program_is_restarted_and_repeats_nothing(runtime_project: RuntimeProject) -> None:
    runtime_project.write_worker([write("a.txt", "one"), {"expect": "a.txt", "sleep": 1, "say": "All done."}])
    process, run = runtime_project.start("tool_result")
    (runtime_project.project / "notes" / "a.txt").write_text("changed since")
    runtime_project.kill_program(process)
    out, err = process.communicate(timeout=60)
    assert json.loads(out.splitlines()[-1])["output"] == "All done.", err
    assert len(runtime_project.read_entries(run, "crashed")) == 1
    assert runtime_project.notes() == {"a.txt": "changed since"}
    assert len(runtime_project.read_entries(run, "tool_started")) == 1


@pytest.mark.req("AW-22")
def test_codex_gets_the_prompt_and_tools_of_the_run_and_is_asked_for_a_typed_result(
    runtime_project: RuntimeProject, tmp_path: Path
) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    (runtime_project.project / "n.json").write_text(json.dumps(schema))
    several = [write("a.txt", "one"), write("b.txt", "two")]
    answers = [
        {"expect": rf"\A{re.escape(TASK)}\Z", "say": "Writing.", "calls": several},
        {"expect": r"(?s)\ACreated a.txt[^\n]*\nCreated b.txt", "say": "Seven."},
        {"expect": r"\AGive the result by calling final_result once", "call": "final_result", "with": {"n": 7}},
    ]
    script = tmp_path / "provider.yaml"
    script.write_text(json.dumps({"workers": {"bob": [answers]}}))
    runtime_project.write_worker([], model="openai:gpt-5.5", output_schema_ref="n.json")
    with ScriptedServer(script) as server:
        runtime_project.env |= {"OPENAI_BASE_URL": server.openai_url, "OPENAI_API_KEY": "script-bob"}
        ran = runtime_project.run(task=TASK)
    assert ran.code == 0, ran.err
    assert json.loads(ran.out) == {"n": 7}
    assert runtime_project.notes() == {"a.txt": "one", "b.txt": "two"}
    first, second, third = (exchange.body or {} for exchange in server.requests)
    assert first["model"] == "gpt-5.5"
    spaces = {space["name"]: [tool["name"] for tool in space["tools"]] for space in first["tools"]}
    assert spaces == {"mcp__tools": SANDBOX, "mcp__result": ["final_result"]}
    assert {space["type"] for space in first["tools"]} == {"namespace"}
    [user_message] = first["input"]
    assert (user_message["role"], user_message["content"]) == ("user", [{"type": "input_text", "text": TASK}])
    assert first["instructions"].startswith("You are Bob.")
    assert "odex" not in str(first)
    assert "Wall time" not in str([second["input"], third["input"]])
    assert "GUILDHALL" not in str(first)
    assert server.answered_twice == []
