"""The real OpenCode as a worker's runtime, through the real command, against a script."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.testing.scripted_server import ScriptedServer
from tests.clis import opencode_program
from tests.hall.offices import Office, write
from tests.hall.test_settings_of_others import lay_out, texts

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Guild

pytestmark = pytest.mark.timeout(300)
TASK = "/help @a.txt {file:n.json} {env:HOME}"
SANDBOX = ["sandbox_list", "sandbox_read_text", "sandbox_write_text"]


@pytest.fixture
def office(guild: Guild, project: Path) -> Office:
    return Office(guild, project, "opencode", opencode_program())


def theirs(call: dict[str, Any]) -> dict[str, Any]:
    """A call as a provider makes it, who knows the tools by OpenCode's names."""
    return {**call, "call": f"tools_{call['call']}"}


@pytest.mark.req("AW-22", "WKR-18", "WKR-16")
def test_opencode_works_with_the_runs_prompt_and_tools_and_is_asked_again_for_what_does_not_fit(
    office: Office, tmp_path: Path
) -> None:
    """Whatever lies around for it in the project and with the person: instructions, servers."""
    trace, person = tmp_path / "trace", tmp_path / "person"
    trace.mkdir()
    lay_out(office.project, trace)
    lay_out(person, trace)
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    (office.project / "n.json").write_text(json.dumps(schema))
    shown = {"expect": r"\A/help @a.txt {file:n.json} {env:HOME}\Z", "expect_system": r"\AYou are {env:HOME} Bob\."}
    answers = [
        {**shown, "say": "Writing.", "calls": [theirs(write("a.txt", "one")), theirs(write("b.txt", "two"))]},
        {"expect": r"(?s)\ACreated a.txt.*Created b.txt", "say": "Seven."},
        {"expect": r"\AGive the result by calling final_result once", "call": "result_final_result", "with": {"n": 7}},
    ]
    script = tmp_path / "provider.yaml"
    script.write_text(json.dumps({"workers": {"bob": [answers]}}))
    fields = {"instructions": "You are {env:HOME} Bob.", "output_schema_ref": "n.json"}
    office.put([], model="anthropic:claude-sonnet-5-5", **fields)
    with ScriptedServer(script) as server:
        office.env |= {"ANTHROPIC_BASE_URL": server.anthropic_url, "ANTHROPIC_API_KEY": "script-bob"}
        office.env |= {"HOME": str(person), "XDG_CONFIG_HOME": str(person / ".config")}
        ran = office.run(task=TASK)
    assert ran.code == 0, ran.err
    assert json.loads(ran.out) == {"n": 7}
    assert office.notes() == {"a.txt": "one", "b.txt": "two"}
    first, *others = (exchange.body or {} for exchange in server.requests)
    assert len(others) == 2
    assert {tool["name"] for tool in first["tools"]} == {"result_final_result", *(f"tools_{name}" for name in SANDBOX)}
    assert [*texts(first["system"]), *texts(first["messages"])] == ["You are {env:HOME} Bob.", TASK]
    assert first["model"] == "claude-sonnet-5-5"
    assert list(trace.iterdir()) == []


def test_killed_with_the_hall_it_goes_on_where_it_was_and_does_nothing_twice(office: Office) -> None:
    office.put([write("a.txt", "one"), {"expect": "a.txt", "sleep": 1, "say": "All done."}])
    process, run = office.start("tool_result")
    (office.project / "notes" / "a.txt").write_text("changed since")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(10)
    ran = office.resume(run)
    assert (ran.code, ran.out) == (0, "All done.\n"), ran.err
    assert office.notes() == {"a.txt": "changed since"}
    assert len(office.kinds(run, "tool_started")) == 1
