"""A setup is a run: on record, told while it goes on, taken up where it stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from guildhall.core.paths import HOME_VARIABLE
from tests.workflow.setting_up import set_up
from tests.workflow.test_setup import HEAD, wait_until_gone

if TYPE_CHECKING:
    from tests.conftest import Guild
    from tests.workflow.conftest import Write

ROOT = Path(__file__).parents[2]

KILLED = f"""{HEAD}
params: [pid]
setup:
  - {{shell: "echo one >> log; echo first", as: one}}
  - shell: |
      echo two >> log
      test -e again && exit
      touch again
      sleep 60 &
      echo $! > sleeper
      kill -9 "${{{{ params.pid }}}}"
      wait
  - {{shell: "echo three >> log; echo last", as: three}}
"""


@pytest.mark.req("AW-3")
def test_it_is_on_record_and_told_while_it_goes_on(write: Write, guild: Guild):
    file = write("review.yaml", f"{HEAD}setup: [{{shell: echo hello, as: greeting}}, {{shell: echo aside >&2}}]")
    run, events = asyncio.run(set_up(file))
    assert (run.status, run.output, run.worker) == ("completed", {"greeting": "hello"}, "setup")
    assert [event.data["text"] for event in events if event.type == "tool_output"] == ["hello\n", "aside\n"]
    assert guild("show", run.id, "--json").json["output"] == {"greeting": "hello"}
    assert [event.type for event in events if event.type.startswith("tool_")] == [
        *("tool_use", "tool_output", "tool_result"),
        *("tool_use", "tool_output", "tool_result"),
    ]


@pytest.mark.req("AW-3")
def test_a_failing_step_fails_the_run(write: Write):
    file = write("review.yaml", f"{HEAD}setup: [{{shell: 'echo why >&2; exit 3'}}, {{shell: touch never}}]")
    run, _ = asyncio.run(set_up(file))
    assert (run.status, (run.error or {})["code"]) == ("failed", "runtime_failed")
    assert "why\n[exit code 3]" in (run.error or {})["message"]
    assert not file.with_name("never").exists()


@pytest.fixture
def killed(write: Write, project: Path) -> Path:
    """A workflow whose hall was killed by its second step."""
    file = write("review.yaml", KILLED)
    names = ("PATH", "HOME", HOME_VARIABLE)
    died = subprocess.run(
        [sys.executable, "-m", "tests.workflow.setting_up", str(file)],
        cwd=ROOT,
        env={name: os.environ[name] for name in names},
        timeout=60,
        check=False,
    )
    assert died.returncode == -signal.SIGKILL
    wait_until_gone(int((project / "sleeper").read_text()))
    return file


def test_after_a_kill_what_has_ended_is_not_repeated_and_the_rest_is_asked_about(killed: Path, guild: Guild):
    lost = guild("ls", "--all", "--json").json["needs_you"]["runs"][0]
    assert lost["status"] == "lost"
    waiting, events = asyncio.run(set_up(killed, run=lost["run"]))
    assert waiting.status == "waiting"
    assert [event.data["ask"]["kind"] for event in events if event.type == "ask_opened"] == ["unknown_effect"]
    assert (killed.parent / "log").read_text() == "one\ntwo\n"
    done, _ = asyncio.run(set_up(killed, run=lost["run"], answer="again"))
    assert (done.status, done.output) == ("completed", {"one": "first", "three": "last"})
    assert (killed.parent / "log").read_text() == "one\ntwo\ntwo\nthree\n"


def test_after_a_kill_a_person_may_say_that_it_was_done(killed: Path, guild: Guild):
    lost = guild("ls", "--all", "--json").json["needs_you"]["runs"][0]["run"]
    asyncio.run(set_up(killed, run=lost))
    done, _ = asyncio.run(set_up(killed, run=lost, answer="done"))
    assert done.output == {"one": "first", "three": "last"}
    assert (killed.parent / "log").read_text() == "one\ntwo\nthree\n"
