"""Workflows in the hall process: they survive the command that started them, and the hall."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import TYPE_CHECKING

import pytest

from tests.cli.places import Terminal

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from tests.conftest import GuildWithHall


@pytest.fixture
def review(project: Path) -> Path:
    agents = {name: {"system_prompt": f"You are {name}.", "model": "script:script.yaml"} for name in ("ann", "bob")}
    script = {
        "workers": {
            "ann": [[{"call": "channel_send", "with": {"message": "@bob your turn"}}, {"say": "done"}]],
            "bob": [[{"call": "channel_send", "with": {"message": "thanks"}}, {"say": "done"}]],
        },
        "repeat": True,
    }
    (project / "script.yaml").write_text(json.dumps(script))
    file = project / "review.yaml"
    text = {"agents": agents, "context": {"documentOwner": "none"}, "kickoff": "@ann begin"}
    file.write_text(json.dumps({"name": "review", **text}))
    return file


def read_messages(guild: GuildWithHall, run: str) -> list[str]:
    lines = [json.loads(line) for line in guild("log", run, "--json").out.splitlines()]
    return [line["content"] for line in lines if line.get("type") == "message"]


@pytest.mark.req("AW-15", "AW-16")
def test_a_background_workflow_survives_the_hall(guild_hall: GuildWithHall, review: Path) -> None:
    began = guild_hall("start", "review.yaml", "--tag", "pr-1", "--background", "--json")
    assert began.code == 0, began.err
    run = began.json["run"]
    assert (began.json["target"], began.json["mode"]) == ("@review:pr-1", "start")
    assert guild_hall("wait", "@review:pr-1", "--timeout", "20s").code == 0
    assert read_messages(guild_hall, run) == ["@ann begin", "@bob your turn", "thanks"]
    refused = guild_hall("start", "review.yaml", "--tag", "pr-1", "--background")
    assert (refused.code, run in refused.err) == (1, True)
    guild_hall.kill_hall()
    sent = guild_hall("send", "bob@review:pr-1", "-", "--json", input="after the crash")
    assert sent.code == 0, sent.err
    assert (sent.json["run"], sent.json["reached"]) == (run, ["bob"])
    assert guild_hall("wait", "@review:pr-1", "--timeout", "20s").code == 0
    assert read_messages(guild_hall, run)[3:] == ["after the crash", "thanks"]
    assert guild_hall("hall", "stop").code == 0
    assert guild_hall("schedule", "@review:pr-1", "set", "1h").code == 0  # starts a hall, which resumes the workflow
    assert guild_hall("send", "@review:pr-1", "@bob and after the stop").code == 0
    assert guild_hall("wait", "bob@review:pr-1", "--timeout", "20s").code == 0
    assert read_messages(guild_hall, run)[5:] == ["@bob and after the stop", "thanks"]
    listed = guild_hall("ls").out
    assert "@review:pr-1" in listed
    assert "wakes every 1h" in listed
    stopped = guild_hall("stop", "@review:pr-1", "--json")
    assert (stopped.code, stopped.json["cancelled"]) == (0, [run])
    assert guild_hall("wait", run).code == 1
    assert guild_hall("ls", "@review:pr-1", "--json").json["status"] == "stopped"


def test_a_failed_agent_is_reported_with_the_next_command(guild_hall: GuildWithHall, review: Path) -> None:
    script = review.with_name("script.yaml")
    good = script.read_text()
    script.write_text(json.dumps({"workers": {"ann": [[{"fail": 400}]]}, "repeat": True}))
    run = guild_hall("start", "review.yaml", "--background", "--json").json["run"]
    for target in ("@review", "ann@review"):
        waited = guild_hall("wait", target, "--timeout", "20s")
        assert (waited.code, waited.out) == (1, "")
        assert f"ann@review has failed; see guild log {run}" in waited.err
        assert "Start it again: guild start ann@review\n" in waited.err
    needs = guild_hall("ls").out.partition("Working")[0]
    assert needs.startswith("Needs you")
    assert needs.rstrip().endswith("guild start ann@review")
    assert "gave up: scripted failure: HTTP 400" in guild_hall("log", run).out
    script.write_text(good)
    assert guild_hall("start", "ann@review").code == 0
    waited = guild_hall("wait", "@review", "--timeout", "20s")
    assert (waited.code, waited.err) == (0, "")
    assert "Needs you" not in guild_hall("ls").out


def _read_until(process: subprocess.Popen[str], words: str) -> str:
    """Return the standard error of a process up to the given text."""
    output = ""
    assert process.stderr
    deadline = time.monotonic() + 20
    while words not in output and time.monotonic() < deadline:
        line = process.stderr.readline()
        assert line, output
        output += line
    return output


def test_ctrl_c_pauses_a_workflow_in_the_foreground(guild_hall: GuildWithHall, review: Path) -> None:
    process = guild_hall.start("start", "review.yaml")
    output = _read_until(process, "idle\n")
    assert "bob: thanks\n" in output
    assert guild_hall("send", "bob@review", "more").code == 0
    assert "person to bob: more" in _read_until(process, "bob: thanks")
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    run = guild_hall("ls", "@review", "--json").json
    assert run["status"] == "paused"
    assert f"guild resume {run['run']}" in err
    sent = guild_hall("send", "bob@review", "are you there?")
    assert "paused" in sent.err
    again = guild_hall("start", "review.yaml", "--background")
    assert (again.code, f"guild resume {run['run']}" in again.err) == (1, True)
    process = guild_hall.start("resume", run["run"])
    assert "bob: thanks" in _read_until(process, "idle\n")
    assert guild_hall("stop", "--all", "--json").json == {"stopped": [run["run"]]}
    assert process.wait(20) == 1


@pytest.mark.req("AW-16", "AW-2")
def test_ctrl_c_stops_only_the_worker_of_its_terminal(guild_hall: GuildWithHall, project: Path, review: Path) -> None:
    (project / "workers").mkdir()
    for name in ("ann", "bob"):
        worker = {"name": name, "instructions": "Greet.", "model": "script:script.yaml"}
        (project / "workers" / f"{name}.yaml").write_text(json.dumps(worker))
    assert guild_hall("start", "bob", "--background").code == 0
    process = guild_hall.start("start", "ann")
    _read_until(process, "Started ann")
    assert guild_hall("send", "ann", "hello").code == 0
    seen = _read_until(process, "ann to bob: @bob your turn")
    assert guild_hall("wait", "bob", "--timeout", "20s").code == 0
    listed = guild_hall("ls").out
    assert "  ann  " in listed
    assert "global" not in listed
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert (process.returncode, "guild start ann" in err) == (130, True)
    assert "bob: thanks" not in seen + err  # the terminal shows only its own worker
    assert "[bob]" not in seen + err
    assert guild_hall("ls", "bob", "--json").json["status"] == "idle"
    assert guild_hall("ls", "ann", "--json").json["status"] == "stopped"
    assert guild_hall("stop", "bob").code == 0
    assert guild_hall("send", "bob", "hello").code == 1


def test_a_second_run_of_a_running_tag_follows_it_at_a_terminal(guild_hall: GuildWithHall, review: Path) -> None:
    run = guild_hall("start", "review.yaml", "--background").out.strip()
    assert guild_hall("wait", "@review", "--timeout", "20s").code == 0
    refused = guild_hall("run", "review.yaml")  # not at a terminal
    assert (refused.code, f"guild log -f {run}" in refused.err) == (1, True)
    person = Terminal(guild_hall, "run", "review.yaml")
    person.wait_for("Following that run. Ctrl-C does not stop it.")
    person.wait_for(run)
    assert guild_hall("send", "bob@review", "do you hear me?").code == 0
    person.wait_for("person to bob: do you hear me?")
    person.wait_for("bob: thanks")
    person.type("\x03")
    assert person.wait_exit()[0] == 130
    person.close()
    shown = guild_hall("ls", "@review", "--json").json
    assert (shown["run"], shown["status"] in ("live", "idle")) == (run, True)
