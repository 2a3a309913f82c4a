"""Lifecycle of a run: running, waiting, paused, interrupted, completed, failed, and what a resume uses."""

from __future__ import annotations

import json
import os
import shutil
import signal
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.testing.scripted_server import ScriptedServer
from tests.runs.places import (
    DONE,
    WRITE,
    journal,
    kinds,
    model_input,
    put_script,
    put_worker,
    run_until_ask,
    wait_until,
)
from tests.runs.test_asks import terminal as terminal

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    from guildhall.core.paths import Home
    from tests.cli.places import Terminal
    from tests.conftest import Guild

SLOW = {"sleep": 60, "say": "too slow"}
TOOLBOX = '''
from guildhall import Toolbox, tool


@tool(capabilities={"fs.write"})
def shout(text: str) -> str:
    """Say it loudly."""
    return text.upper()


toolbox = Toolbox("voice", shout)
'''


def start_run(guild: Guild, project: Path, *words: str) -> tuple[subprocess.Popen[str], str]:
    """Start a run and wait for its second model call. Return its process and its id."""
    put_worker(project, tool_rules=None)
    put_script(project, WRITE, SLOW)
    process = guild.start("run", "scribe", "go", "--output", "stream-json", *words)
    assert process.stdout is not None
    run = json.loads(process.stdout.readline())["run"]
    wait_until(lambda: kinds(journal(guild, run)).count("model_asked") == 2)
    put_script(project, WRITE, DONE)
    return process, run


def status(guild: Guild, run: str) -> str:
    return guild("show", run, "--json").json["status"]


@pytest.mark.req("X-2")
def test_a_killed_run_is_interrupted_and_resumes_where_its_journal_ends(guild: Guild, project: Path) -> None:
    process, run = start_run(guild, project)
    assert status(guild, run) == "running"
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(5)
    assert status(guild, run) == "interrupted"
    assert run in guild("ls").out
    again = guild("resume", run)
    assert (again.code, again.out) == (0, "done\n")
    entries = journal(guild, run)
    assert [entry["data"]["was"] for entry in entries if entry["kind"] == "resumed"] == ["interrupted"]
    assert kinds(entries).count("tool_started") == 1
    assert status(guild, run) == "completed"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_pauses_a_run(guild: Guild, project: Path, number: signal.Signals) -> None:
    process, run = start_run(guild, project)
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert f"Continue: guild resume {run}" in err
    assert "Traceback" not in err
    assert status(guild, run) == "paused"
    assert kinds(journal(guild, run))[-1] == "paused"
    assert guild("resume", run).out == "done\n"


def test_ctrl_c_pauses_a_run(guild: Guild, project: Path, terminal: Callable[..., Terminal]) -> None:
    put_worker(project, tool_rules=None)
    put_script(project, WRITE, SLOW)
    person = terminal("run", "scribe", "go")
    person.wait_for("← sandbox_write_text")
    person.type("\x03")
    person.wait_for("Continue: guild resume")
    assert person.wait_exit()[0] == 130
    put_script(project, WRITE, DONE)
    run = guild("ls", "--json", "--all").json["needs_you"]["runs"][0]["run"]
    assert guild("resume", run).out == "done\n"


def test_ctrl_c_leaves_the_ask_open(guild: Guild, project: Path, terminal: Callable[..., Terminal]) -> None:
    put_worker(project)
    put_script(project, WRITE, DONE)
    person = terminal("run", "scribe", "go")
    person.wait_for("Allow this call?")
    person.type("\x03")
    assert person.wait_exit()[0] == 130
    ask = guild("ls", "--json").json["needs_you"]["asks"][0]["ask"]
    ran = guild("answer", ask, "yes")
    run = guild("show", ask, "--json").json["run"]
    if ran.code == 4:  # paused: only `guild resume` continues it
        ran = guild("resume", run)
    assert ran.out == "done\n"


def test_one_home_has_one_hall_and_any_number_of_readers(guild: Guild, project: Path) -> None:
    process, run = start_run(guild, project)
    for words in (["run", "scribe", "go"], ["resume", run]):
        ran = guild(*words)
        assert ran.code == 7
        assert f"in use by another guild command (pid {process.pid}" in ran.err
        assert "GUILDHALL_HOME" in ran.err
    for words in (["ls"], ["show", run], ["log", run], ["cost"], ["worker", "ls"]):
        assert guild(*words).code == 0, words
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert guild("resume", run).code == 0


def test_a_completed_run_is_not_resumed(guild: Guild, project: Path) -> None:
    put_worker(project)
    put_script(project, DONE)
    run = guild("run", "scribe", "go", "--output", "json").json["run"]
    ran = guild("resume", run)
    assert ran.code == 1
    assert f"cannot resume {run}: it is completed" in ran.err
    unknown = guild("resume", run[:-1] + ("2" if run[-1] != "2" else "3"))
    assert unknown.code == 3
    assert f"Did you mean '{run}'?" in unknown.err


def test_a_failed_run_resumes_from_its_last_step(guild: Guild, project: Path) -> None:
    put_worker(project, tool_rules=None)
    put_script(project, WRITE, {"fail": 400})
    ran = guild("run", "scribe", "go", "--output", "json")
    assert (ran.code, ran.json["error"]["code"]) == (1, "model_failed")
    put_script(project, WRITE, DONE)
    assert guild("resume", ran.json["run"]).out == "done\n"
    entries = journal(guild, ran.json["run"])
    assert kinds(entries).count("tool_started") == 1
    shown = guild("show", ran.json["run"], "--json").json
    assert (shown["status"], shown["error"]) == ("completed", None)


def test_a_transient_model_error_is_retried(guild: Guild, project: Path) -> None:
    put_worker(project)
    put_script(project, {"fail": 529}, {"fail": 503}, DONE)
    ran = guild("run", "scribe", "go", "--output", "json")
    assert ran.code == 0
    entries = journal(guild, ran.json["run"])
    assert kinds(entries).count("model_failed") == 2
    assert kinds(entries).count("model_answered") == 1


# Resume


@pytest.mark.parametrize("change", ["deleted", "changed", "retired", "locked"])
def test_a_resumed_run_keeps_its_recorded_worker(guild: Guild, project: Path, change: str) -> None:
    path = put_worker(project)
    put_script(project, WRITE, DONE)
    _, run, ask = run_until_ask(guild)
    if change == "deleted":
        path.unlink()
    elif change == "changed":
        put_worker(project, instructions="Be something else.", tools=["Read"], limits={"max_turns": 1})
    elif change == "retired":
        assert guild("worker", "set", "scribe", "retired").code == 0
    else:
        assert guild("worker", "lock", "scribe").code == 0
    ran = guild("answer", ask, "yes")
    assert (ran.code, ran.out) == (0, "done\n"), ran
    assert (project / "notes" / "a.md").read_text() == "one"
    messages = guild("show", run, "--json").json["messages"]
    assert messages[0] == {"role": "system", "content": "Write the requested lines."}


@pytest.mark.req("DO-13")
def test_a_resumed_run_obeys_a_stricter_current_rule(guild: Guild, project: Path) -> None:
    put_worker(project)
    put_script(project, WRITE, DONE)
    _, run, ask = run_until_ask(guild)
    put_worker(project, tool_rules={"sandbox.write": {"allowed": False}})
    assert guild("answer", ask, "yes").code == 0
    assert "Not permitted: the worker's rule 'fs.write' forbids it." in model_input(journal(guild, run))
    assert not (project / "notes" / "a.md").exists()


@pytest.mark.parametrize("fields", [{"sandboxes": None}, {"sandboxes": {"notes": {"path": "./notes", "mode": "ro"}}}])
def test_a_resumed_run_does_not_use_a_removed_sandbox(guild: Guild, project: Path, fields: dict[str, Any]) -> None:
    put_worker(project)
    put_script(project, WRITE, DONE)
    _, run, ask = run_until_ask(guild)
    put_worker(project, **{"tool_rules": None, **fields})
    assert guild("answer", ask, "yes").code == 0
    assert "tool_started" not in kinds(journal(guild, run)) or "is_error': True" in str(journal(guild, run))
    assert not (project / "notes" / "a.md").exists()


def test_a_resumed_run_ignores_a_looser_current_rule(guild: Guild, project: Path) -> None:
    put_worker(project)
    put_script(project, WRITE, DONE)
    _, run, ask = run_until_ask(guild)
    put_worker(project, tool_rules=None)
    ran = guild("resume", run, "--output", "json")
    assert ran.code == 4
    assert ran.json["asks"][0]["ask"] == ask


def test_a_run_is_not_resumed_while_its_worker_file_is_invalid(guild: Guild, project: Path) -> None:
    path = put_worker(project)
    put_script(project, WRITE, DONE)
    _, run, _ = run_until_ask(guild)
    good = path.read_text()
    path.write_text("name: [")
    ran = guild("resume", run)
    assert ran.code == 2
    assert "scribe.yaml" in ran.err
    path.write_text(good)
    assert guild("resume", run).code == 4


@pytest.fixture
def voice(home: Home, project: Path) -> Path:
    """Toolbox file of a worker that asks before it uses the tool."""
    home.toolboxes.mkdir(parents=True)
    path = home.toolboxes / "voice.py"
    path.write_text(TOOLBOX)
    put_worker(project, toolboxes=["voice"], sandboxes=None)
    put_script(project, {"call": "shout", "with": {"text": "hey"}}, DONE)
    return path


def test_a_run_is_not_resumed_with_a_changed_tool(guild: Guild, voice: Path) -> None:
    _, run, ask = run_until_ask(guild)
    voice.write_text(TOOLBOX.replace("text: str", "text: str, louder: bool"))
    ran = guild("resume", run)
    assert ran.code == 1
    assert "the tool 'shout' has changed since the run started" in ran.err
    assert status(guild, run) == "waiting"
    voice.write_text(TOOLBOX)
    assert guild("answer", ask, "yes").code == 0
    assert "HEY" in model_input(journal(guild, run))


def test_resume_names_a_missing_toolbox(guild: Guild, voice: Path) -> None:
    _, run, _ = run_until_ask(guild)
    voice.unlink()
    ran = guild("resume", run)
    assert ran.code == 1
    assert "unknown toolbox 'voice'" in ran.err


@pytest.mark.req("WKR-16")
def test_the_model_receives_the_recorded_prompt_and_tools_after_a_resume(
    guild: Guild, voice: Path, project: Path
) -> None:
    (project / "answers.yaml").write_text(
        json.dumps({"workers": {"scribe": [[{"call": "shout", "with": {"text": "hey"}}, DONE]]}})
    )
    with ScriptedServer(project / "answers.yaml") as server:
        env = {"ANTHROPIC_API_KEY": "script-scribe", "ANTHROPIC_BASE_URL": server.anthropic_url}
        ran = guild("run", "scribe", "go", "--model", "anthropic:claude-sonnet-4-5", "--output", "json", env=env)
        assert ran.code == 4, ran
        voice.write_text(
            TOOLBOX.replace('"voice", shout', '"voice", shout, tool(whisper)').replace(
                "toolbox =", 'def whisper(text: str) -> str:\n    """Say it softly."""\n    return text\n\n\ntoolbox ='
            )
        )
        put_worker(project, toolboxes=["voice"], sandboxes=None, instructions="Be another.")
        again = guild("answer", ran.json["asks"][0]["ask"], "yes", env=env)
        assert again.out == "done\n", again
        first, second = (exchange.body for exchange in server.requests)
        assert first["system"] == second["system"]
        assert first["tools"] == second["tools"]
        assert "softly" not in str(second)
        assert server.answered_twice == []


def test_a_sandbox_that_cannot_be_created_is_reported_before_the_run_starts(guild: Guild, project: Path) -> None:
    put_worker(project, sandboxes={"notes": {"path": "./file/notes", "mode": "rw"}})
    put_script(project, DONE)
    (project / "file").write_text("in the way")
    ran = guild("run", "scribe", "go")
    assert ran.code == 1
    assert "sandboxes.notes.path" in ran.err
    assert "internal error" not in ran.err
    assert guild("ls", "--all", "--json").json["done"] == []


def test_resume_reports_a_missing_project(guild: Guild, project: Path, tmp_path: Path) -> None:
    put_worker(project)
    put_script(project, WRITE, DONE)
    _, run, _ = run_until_ask(guild)
    shutil.rmtree(project)
    ran = guild("resume", run, cwd=tmp_path)
    assert ran.code in {1, 2, 3, 4}
    assert "Traceback" not in ran.err
    assert "internal error" not in ran.err


def test_the_journal_of_a_run_is_complete(guild: Guild, project: Path) -> None:
    """Sequence numbers have no gap, and entries have all fields."""
    put_worker(project, tool_rules=None)
    put_script(project, WRITE, {"call": "nothing_like_it"}, DONE)
    run = guild("run", "scribe", "go", "--output", "json").json["run"]
    entries: list[dict[str, Any]] = journal(guild, run)
    assert [entry["seq"] for entry in entries] == list(range(len(entries)))
    assert all(set(entry) == {"run", "seq", "kind", "key", "at", "data"} for entry in entries)
    first = entries[0]["data"]
    assert {"system_prompt", "first_message", "tools", "worker", "model", "bounds", "hash", "mode"} <= set(first)
    assert kinds(entries)[-1] == "ended"
    assert "tool_refused" in kinds(entries)
