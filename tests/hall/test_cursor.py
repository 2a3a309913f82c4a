"""Cursor's agent as a worker's runtime, through the real command, with a stand-in for the program, which cannot be had.

The stand-in checks its command line and its surroundings, and speaks MCP: tests/standins/cursor-agent.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

import pytest

from tests.conftest import ROOT
from tests.hall.offices import Office

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Guild, GuildWithHall

WRITE = '> call tools sandbox_write_text {"sandbox": "notes", "path": "a.txt", "content": "one"}'


def office_of(guild: Guild, project: Path, tmp_path: Path) -> Office:
    program = tmp_path / "cursor-agent"
    _, _, text = (ROOT / "tests" / "standins" / "cursor-agent").read_text().partition("\n")
    program.write_text(f"#!{os.path.realpath(sys.executable)}\n{text}")  # whatever `python3` is on this machine
    program.chmod(0o755)
    office = Office(guild, project, "cursor", program)
    office.env["CURSOR_API_KEY"] = "key_of_cursor"
    office.put([], model="cursor:auto")
    return office


@pytest.fixture
def office(guild: Guild, project: Path, tmp_path: Path) -> Office:
    return office_of(guild, project, tmp_path)


@pytest.mark.req("AW-22")
def test_cursor_works_with_the_runs_tools_and_its_words_are_the_output(office: Office) -> None:
    ran = office.run(task=f"{WRITE}\n> say It said: $LAST")
    assert (ran.code, ran.out) == (0, "It said: Created a.txt in the sandbox notes (3 bytes).\n"), ran.err
    assert office.notes() == {"a.txt": "one"}


def test_a_result_that_must_fit_is_given_with_a_tool_and_asked_for_until_it_does(office: Office) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    (office.project / "n.json").write_text(json.dumps(schema))
    office.put([], model="cursor:gpt-5", output_schema_ref="n.json")
    wrong, right = ('> call result final_result {"n": "x"}', '> call result final_result {"n": 7}')
    ran = office.run(task=f"{wrong}\n{right}")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out) == {"n": 7}
    never = office.run(task="> say Seven.")
    assert never.code == 1
    assert "3 unusable model answers in a row: Give the result by calling final_result once" in never.err


def test_a_crash_ends_the_run_and_what_it_did_is_not_done_again(office: Office) -> None:
    ran = office.run("--output", "json", task=f"{WRITE}\n> crash")
    assert ran.code == 1
    assert "exited with code 7. Output: the stand-in falls over" in ran.err
    assert "It is not restarted" in ran.err
    run = ran.json["run"]
    assert len(office.kinds(run, "tool_started")) == 1
    again = office.resume(run)
    assert again.code != 0
    assert "would start over and repeat sandbox_write_text" in again.err
    assert "guild run bob" in again.err
    played = office.guild("replay", run, env=office.env)
    assert "calls its model itself, so the answers are not recorded" in played.err


def test_one_that_has_done_nothing_can_be_begun_anew(office: Office) -> None:
    ran = office.run("--output", "json", task='> call tools sandbox_list {"sandbox": "notes"}\n> crash')
    again = office.resume(ran.json["run"])
    assert "the stand-in falls over" in again.err  # it was started again, and fell again
    assert len(office.kinds(ran.json["run"], "tool_started")) == 2


def test_an_approval_is_waited_for_with_the_program_alive(
    guild_hall: GuildWithHall, project: Path, tmp_path: Path
) -> None:
    office = office_of(guild_hall, project, tmp_path)
    office.put([], model="cursor:auto", tool_rules={"fs.write": {"approval_required": True}})
    process, run = office.start("ask_opened", task=f"{WRITE}\n> say $LAST")
    [ask] = guild_hall("ls", "--json").json["needs_you"]["asks"]
    assert ask["run"] == run
    assert guild_hall("answer", ask["ask"], "yes").code == 0
    out, err = process.communicate(timeout=30)
    assert json.loads(out.splitlines()[-1])["output"] == "Created a.txt in the sandbox notes (3 bytes).", err
    assert office.kinds(run, "paused") == []


def test_without_a_key_or_with_another_model_nothing_begins(office: Office) -> None:
    del office.env["CURSOR_API_KEY"]
    ran = office.run()
    assert ran.code != 0
    assert "CURSOR_API_KEY is not set" in ran.err
    office.put([{"say": "Hello."}])
    refused = office.run()
    assert refused.code != 0
    assert "runtime cursor does not accept the model script:" in refused.err
    office.put([], runtime="pydantic", model="cursor:auto")
    assert "works only with `runtime: cursor`" in office.run().err


def test_private_files_and_its_network_come_together_only_where_the_file_accepts_it(office: Office) -> None:
    office.put([], model="cursor:auto", accepts_risk=False)
    ran = office.run()
    assert ran.code != 0
    assert "Cursor Agent reaches the network by itself and could send out private files" in ran.err
    assert "accepts_risk: true" in ran.err
    planned = office.guild("plan", "bob", env=office.env).out
    assert "network       used by Cursor Agent itself" in planned
    assert "exfiltration: reads private files and untrusted text" in planned
    office.put([], model="cursor:auto", sandboxes={})
    assert office.run(task="> say Hello.").out == "Hello.\n"
