"""The real OpenCode as a worker's runtime, through the real command, against a script."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING

import pytest

from tests.clis import opencode_program
from tests.hall.offices import Office, write

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Guild


@pytest.fixture
def office(guild: Guild, project: Path) -> Office:
    return Office(guild, project, "opencode", opencode_program())


@pytest.mark.req("AW-22")
def test_opencode_works_with_the_runs_prompt_and_tools_and_is_asked_again_for_what_does_not_fit(office: Office) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    (office.project / "n.json").write_text(json.dumps(schema))
    shown = {"expect": r"\A/help @a.txt {file:n.json} {env:HOME}\Z", "expect_system": r"\AYou are {env:HOME} Bob\."}
    office.put(
        [
            {**shown, "say": "Writing.", "calls": [write("a.txt", "one"), write("b.txt", "two")]},
            {"expect": r"(?s)\AMade a.txt.*Made b.txt", "say": "Seven."},
            {"expect": r"\AGive the result by calling final_result once", "output": {"n": 7}},
        ],
        instructions="You are {env:HOME} Bob.",
        output_schema_ref="n.json",
    )
    ran = office.run(task="/help @a.txt {file:n.json} {env:HOME}")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out) == {"n": 7}
    assert office.notes() == {"a.txt": "one", "b.txt": "two"}


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
