"""Cursor's agent as a runtime, through the real command, with a stand-in for the program.

The stand-in, tests/standins/cursor-agent, checks its command line and environment, and is an MCP client.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

import pytest

from tests.conftest import ROOT
from tests.hall.runtime_project import RuntimeProject

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Guild, GuildWithHall

WRITE = '> call tools sandbox_write_text {"sandbox": "notes", "path": "a.txt", "content": "one"}'


def make_runtime_project(guild: Guild, project: Path, tmp_path: Path) -> RuntimeProject:
    program = tmp_path / "cursor-agent"
    _, _, text = (ROOT / "tests" / "standins" / "cursor-agent").read_text().partition("\n")
    program.write_text(f"#!{os.path.realpath(sys.executable)}\n{text}")  # this interpreter instead of `python3`
    program.chmod(0o755)
    runtime_project = RuntimeProject(guild, project, "cursor", program)
    runtime_project.env["CURSOR_API_KEY"] = "key_of_cursor"
    runtime_project.write_worker([], model="cursor:auto")
    return runtime_project


@pytest.fixture
def runtime_project(guild: Guild, project: Path, tmp_path: Path) -> RuntimeProject:
    return make_runtime_project(guild, project, tmp_path)


@pytest.mark.req("AW-22")
def test_cursor_uses_the_tools_of_the_run_and_its_text_is_the_output(runtime_project: RuntimeProject) -> None:
    ran = runtime_project.run(task=f"{WRITE}\n> say It said: $LAST")
    assert (ran.code, ran.out) == (0, "It said: Created a.txt in the sandbox notes (3 bytes).\n"), ran.err
    assert runtime_project.notes() == {"a.txt": "one"}


def test_a_typed_result_is_requested_until_it_matches(runtime_project: RuntimeProject) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    (runtime_project.project / "n.json").write_text(json.dumps(schema))
    runtime_project.write_worker([], model="cursor:gpt-5", output_schema_ref="n.json")
    wrong, right = ('> call result final_result {"n": "x"}', '> call result final_result {"n": 7}')
    ran = runtime_project.run(task=f"{wrong}\n{right}")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out) == {"n": 7}
    never = runtime_project.run(task="> say Seven.")
    assert never.code == 1
    assert "3 unusable model responses in a row: Give the result by calling final_result once" in never.err


def test_a_crash_fails_the_run_and_calls_are_not_repeated(runtime_project: RuntimeProject) -> None:
    ran = runtime_project.run("--output", "json", task=f"{WRITE}\n> crash")
    assert ran.code == 1
    assert "exited with code 7. Output: the stand-in falls over" in ran.err
    assert "The run cannot continue" in ran.err
    run = ran.json["run"]
    assert len(runtime_project.read_entries(run, "tool_started")) == 1
    again = runtime_project.resume(run)
    assert again.code != 0
    assert "would start over and repeat sandbox_write_text" in again.err
    assert "Start a new run for the remaining work" in again.err
    played = runtime_project.guild("replay", run, env=runtime_project.env)
    assert "calls its model itself, so the answers are not recorded" in played.err


def test_a_run_without_effects_can_start_over(runtime_project: RuntimeProject) -> None:
    ran = runtime_project.run("--output", "json", task='> call tools sandbox_list {"sandbox": "notes"}\n> crash')
    again = runtime_project.resume(ran.json["run"])
    assert "the stand-in falls over" in again.err  # it was restarted, and crashed again
    assert len(runtime_project.read_entries(ran.json["run"], "tool_started")) == 2


def test_the_program_stays_alive_during_an_approval(guild_hall: GuildWithHall, project: Path, tmp_path: Path) -> None:
    runtime_project = make_runtime_project(guild_hall, project, tmp_path)
    runtime_project.write_worker([], model="cursor:auto", tool_rules={"fs.write": {"approval_required": True}})
    process, run = runtime_project.start("ask_opened", task=f"{WRITE}\n> say $LAST")
    [ask] = guild_hall("ls", "--json").json["needs_you"]["asks"]
    assert ask["run"] == run
    assert guild_hall("answer", ask["ask"], "yes").code == 0
    out, err = process.communicate(timeout=30)
    assert json.loads(out.splitlines()[-1])["output"] == "Created a.txt in the sandbox notes (3 bytes).", err
    assert runtime_project.read_entries(run, "paused") == []


def test_a_missing_key_or_a_wrong_model_is_refused(runtime_project: RuntimeProject) -> None:
    del runtime_project.env["CURSOR_API_KEY"]
    ran = runtime_project.run()
    assert ran.code != 0
    assert "CURSOR_API_KEY is not set" in ran.err
    runtime_project.write_worker([{"say": "Hello."}])
    refused = runtime_project.run()
    assert refused.code != 0
    assert "runtime cursor does not accept the model script:" in refused.err
    runtime_project.write_worker([], runtime="pydantic", model="cursor:auto")
    assert "works only with `runtime: cursor`" in runtime_project.run().err


def test_private_files_with_network_access_need_accepts_risk(runtime_project: RuntimeProject) -> None:
    runtime_project.write_worker([], model="cursor:auto", accepts_risk=False)
    ran = runtime_project.run()
    assert ran.code != 0
    assert "Cursor Agent could send private files over the network without approval" in ran.err
    assert "accepts_risk: true" in ran.err
    planned = runtime_project.guild("plan", "bob", env=runtime_project.env).out
    assert "network       used by Cursor Agent itself" in planned
    assert "exfiltration: reads private files and untrusted text" in planned
    runtime_project.write_worker([], model="cursor:auto", sandboxes={})
    assert runtime_project.run(task="> say Hello.").out == "Hello.\n"
