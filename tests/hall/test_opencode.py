"""OpenCode as a runtime, with the real program and command, and a scripted model."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.testing.scripted_server import ScriptedServer
from tests.clis import opencode_program
from tests.hall.runtime_project import RuntimeProject, write
from tests.hall.test_foreign_settings import find_texts, write_foreign_settings

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Guild

pytestmark = pytest.mark.timeout(300)
TASK = "/help @a.txt {file:n.json} {env:HOME}"
SANDBOX = ["sandbox_list", "sandbox_read_text", "sandbox_write_text"]


@pytest.fixture
def runtime_project(guild: Guild, project: Path) -> RuntimeProject:
    return RuntimeProject(guild, project, "opencode", opencode_program())


def with_opencode_name(call: dict[str, Any]) -> dict[str, Any]:
    """Return a call with the name that OpenCode gives to the tool."""
    return {**call, "call": f"tools_{call['call']}"}


@pytest.mark.req("AW-22", "WKR-18", "WKR-16")
def test_opencode_gets_the_prompt_and_tools_of_the_run_and_is_asked_for_a_typed_result(
    runtime_project: RuntimeProject, tmp_path: Path
) -> None:
    """Instructions and servers for OpenCode in the project and the user's home are ignored."""
    trace, person = tmp_path / "trace", tmp_path / "person"
    trace.mkdir()
    write_foreign_settings(runtime_project.project, trace)
    write_foreign_settings(person, trace)
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    (runtime_project.project / "n.json").write_text(json.dumps(schema))
    shown = {"expect": r"\A/help @a.txt {file:n.json} {env:HOME}\Z", "expect_system": r"\AYou are {env:HOME} Bob\."}
    answers = [
        {
            **shown,
            "say": "Writing.",
            "calls": [with_opencode_name(write("a.txt", "one")), with_opencode_name(write("b.txt", "two"))],
        },
        {"expect": r"(?s)\ACreated a.txt.*Created b.txt", "say": "Seven."},
        {"expect": r"\AGive the result by calling final_result once", "call": "result_final_result", "with": {"n": 7}},
    ]
    script = tmp_path / "provider.yaml"
    script.write_text(json.dumps({"workers": {"bob": [answers]}}))
    fields = {"instructions": "You are {env:HOME} Bob.", "output_schema_ref": "n.json"}
    runtime_project.write_worker([], model="anthropic:claude-sonnet-5-5", **fields)
    with ScriptedServer(script) as server:
        runtime_project.env |= {"ANTHROPIC_BASE_URL": server.anthropic_url, "ANTHROPIC_API_KEY": "script-bob"}
        runtime_project.env |= {"HOME": str(person), "XDG_CONFIG_HOME": str(person / ".config")}
        ran = runtime_project.run(task=TASK)
    assert ran.code == 0, ran.err
    assert json.loads(ran.out) == {"n": 7}
    assert runtime_project.notes() == {"a.txt": "one", "b.txt": "two"}
    first, *others = (exchange.body or {} for exchange in server.requests)
    assert len(others) == 2
    assert {tool["name"] for tool in first["tools"]} == {"result_final_result", *(f"tools_{name}" for name in SANDBOX)}
    assert [*find_texts(first["system"]), *find_texts(first["messages"])] == ["You are {env:HOME} Bob.", TASK]
    assert first["model"] == "claude-sonnet-5-5"
    assert list(trace.iterdir()) == []


def test_a_run_killed_with_the_hall_is_resumed_and_repeats_nothing(runtime_project: RuntimeProject) -> None:
    runtime_project.write_worker([write("a.txt", "one"), {"expect": "a.txt", "sleep": 1, "say": "All done."}])
    process, run = runtime_project.start("tool_result")
    (runtime_project.project / "notes" / "a.txt").write_text("changed since")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(10)
    ran = runtime_project.resume(run)
    assert (ran.code, ran.out) == (0, "All done.\n"), ran.err
    assert runtime_project.notes() == {"a.txt": "changed since"}
    assert len(runtime_project.read_entries(run, "tool_started")) == 1
