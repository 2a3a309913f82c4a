"""The real Codex as a worker's runtime, through the real command, against a script."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from guildhall.testing.scripted_server import ScriptedServer
from tests.clis import codex_program
from tests.hall.offices import Office, write

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Guild

TASK = "/help @a.txt $skill {env:HOME}"
SANDBOX = ["sandbox_list", "sandbox_read_text", "sandbox_write_text"]


@pytest.fixture
def office(guild: Guild, project: Path) -> Office:
    return Office(guild, project, "codex", codex_program())


def test_killed_it_is_started_again_where_it_was_and_does_nothing_twice(office: Office) -> None:
    office.put([write("a.txt", "one"), {"expect": "a.txt", "sleep": 1, "say": "All done."}])
    process, run = office.start("tool_result")
    (office.project / "notes" / "a.txt").write_text("changed since")
    office.kill_program(process)
    out, err = process.communicate(timeout=60)
    assert json.loads(out.splitlines()[-1])["output"] == "All done.", err
    assert len(office.kinds(run, "crashed")) == 1
    assert office.notes() == {"a.txt": "changed since"}
    assert len(office.kinds(run, "tool_started")) == 1


@pytest.mark.req("AW-22")
def test_codex_works_with_the_runs_prompt_and_tools_and_is_asked_again_for_what_does_not_fit(
    office: Office, tmp_path: Path
) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    (office.project / "n.json").write_text(json.dumps(schema))
    several = [write("a.txt", "one"), write("b.txt", "two")]
    answers = [
        {"expect": rf"\A{re.escape(TASK)}\Z", "say": "Writing.", "calls": several},
        {"expect": r"(?s)\ACreated a.txt[^\n]*\nCreated b.txt", "say": "Seven."},
        {"expect": r"\AGive the result by calling final_result once", "call": "final_result", "with": {"n": 7}},
    ]
    script = tmp_path / "provider.yaml"
    script.write_text(json.dumps({"workers": {"bob": [answers]}}))
    office.put([], model="openai:gpt-5.5", output_schema_ref="n.json")
    with ScriptedServer(script) as server:
        office.env |= {"OPENAI_BASE_URL": server.openai_url, "OPENAI_API_KEY": "script-bob"}
        ran = office.run(task=TASK)
    assert ran.code == 0, ran.err
    assert json.loads(ran.out) == {"n": 7}
    assert office.notes() == {"a.txt": "one", "b.txt": "two"}
    first, second, third = (exchange.body or {} for exchange in server.requests)
    assert first["model"] == "gpt-5.5"
    spaces = {space["name"]: [tool["name"] for tool in space["tools"]] for space in first["tools"]}
    assert spaces == {"mcp__tools": SANDBOX, "mcp__result": ["final_result"]}
    assert {space["type"] for space in first["tools"]} == {"namespace"}
    [said] = first["input"]
    assert (said["role"], said["content"]) == ("user", [{"type": "input_text", "text": TASK}])
    assert first["instructions"].startswith("You are Bob.")
    assert "odex" not in str(first)
    assert "Wall time" not in str([second["input"], third["input"]])
    assert "GUILDHALL" not in str(first)
    assert server.answered_twice == []
