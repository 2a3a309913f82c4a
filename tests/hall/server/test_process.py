"""The hall process, through the real command: start, sharing, crashes, idle exit, versions."""

from __future__ import annotations

import json
import os
import resource
import select
import shlex
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.hall.client.discovery import EMBEDDED_VARIABLE, find_hall
from guildhall.testing.scripted_server import ScriptedServer
from tests.cli.places import Terminal
from tests.runs.places import DONE, WRITE, put_script, put_worker, wait_until

if TYPE_CHECKING:
    from guildhall.core.paths import Home
    from tests.conftest import CommandResult, Guild, GuildWithHall

TIMEOUT_S = 30.0
TOOLBOX = '''
import json, os, time
from pathlib import Path

from guildhall import tool

DESK = Path(@DESK@)


@tool(capabilities={"fs.write"})
def enter(line: str) -> str:
    """Enter a line into the book."""
    with (DESK / "book").open("a") as book:
        book.write(line + "\\n")
    if (DESK / f"hold-{line}").exists():
        (DESK / f"held-{line}").touch()
        time.sleep(60)
    return "entered " + line


@tool(capabilities={"fs.read"})
def surroundings() -> str:
    """Tell what can be seen of the environment."""
    return json.dumps(dict(os.environ))
'''


def write_clerk(project: Path, home: Home, *answers: dict[str, Any]) -> Path:
    """Write a worker with a toolbox of the home that records its calls in a folder, and return the folder."""
    desk = project / "desk"
    desk.mkdir()
    (home.path / "toolboxes").mkdir(parents=True)
    (home.path / "toolboxes" / "desk.py").write_text(TOOLBOX.replace("@DESK@", repr(str(desk))))
    put_worker(
        project, "clerk", toolboxes=["desk"], sandboxes={"desk": {"path": "./desk", "mode": "rw"}}, tool_rules=None
    )
    put_script(project, *answers)
    return desk


def enter(line: str) -> dict[str, Any]:
    return {"call": "enter", "with": {"line": line}}


def write_settings(home: Home, **fields: Any) -> None:
    home.path.mkdir(exist_ok=True, mode=0o700)
    home.settings.write_text(json.dumps(fields))


def wait_for_line(process: subprocess.Popen[str], text: str) -> str:
    """Return the next line on standard error that contains the text."""
    assert process.stderr is not None
    end = time.monotonic() + TIMEOUT_S
    while time.monotonic() < end:
        line = process.stderr.readline()
        if text in line:
            return line
        assert line, f"{text!r} was not printed"
    raise AssertionError(f"{text!r} was not printed in time")


def wait_for_run_id(process: subprocess.Popen[str]) -> str:
    """Return the id of the run that a command has just started."""
    return wait_for_line(process, "Run r-").split()[1].rstrip(":")


def has_exited(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists() or " Z " in Path(f"/proc/{pid}/stat").read_text()


def read_all_files(home: Home) -> bytes:
    return b"".join(path.read_bytes() for path in home.path.rglob("*") if path.is_file())


def test_the_first_writing_command_starts_the_hall_and_later_commands_use_it(
    guild_hall: GuildWithHall, project: Path, home: Home
) -> None:
    put_worker(project, tool_rules=None)
    put_script(project, WRITE, DONE)
    assert guild_hall("ls").code == 0
    assert find_hall(home) is None, "read commands need no hall"
    first = guild_hall.start("run", "scribe", "go", installed=True)  # the installed command, as a user starts it
    printed = first.communicate(timeout=TIMEOUT_S)
    assert (first.returncode, printed[0]) == (0, "done\n"), printed
    hall = guild_hall.hall()
    assert b"guildhall.hall.server.process" in Path(f"/proc/{hall.pid}/cmdline").read_bytes()
    second = guild_hall("run", "scribe", "go", "--output", "json")
    assert second.json["status"] == "completed"
    assert guild_hall.hall() == hall
    status = guild_hall("hall", "status", "--json").json
    assert {"running": True, "pid": hall.pid, "state": "serving", "runs": 0}.items() <= status.items()
    assert len(guild_hall("ls", "--json").json["done"]) == 2
    assert stat.S_IMODE(home.address.stat().st_mode) == 0o600
    assert stat.S_IMODE(home.log.stat().st_mode) == 0o600
    assert hall.token not in home.log.read_text()
    assert hall.token not in "".join(printed) + json.dumps(status)
    assert hall.token.encode() not in Path(f"/proc/{hall.pid}/cmdline").read_bytes()
    assert os.getsid(hall.pid) == hall.pid, "a session of its own"
    stopped = guild_hall("hall", "stop")
    assert str(hall.pid) in stopped.out
    assert has_exited(hall.pid)
    assert not home.address.exists()
    assert guild_hall("hall", "status", "--json").json == {"running": False}
    assert guild_hall("hall", "stop").out == "The hall is not running.\n"
    assert len(guild_hall("ls", "--json").json["done"]) == 2
    assert find_hall(home) is None


def test_interrupting_one_of_two_terminals_pauses_only_its_run(guild_hall: GuildWithHall, project: Path) -> None:
    put_worker(project, tool_rules=None)
    put_script(project, {"sleep": 1.5, "say": "slept"})
    one, other = guild_hall.start("run", "scribe", "one"), guild_hall.start("run", "scribe", "other")
    runs = [wait_for_run_id(one), wait_for_run_id(other)]
    one.send_signal(signal.SIGINT)
    out, err = one.communicate(timeout=TIMEOUT_S)
    assert (one.returncode, out) == (130, "")
    assert f"guild resume {runs[0]}" in err
    out, err = other.communicate(timeout=TIMEOUT_S)
    assert (other.returncode, out) == (0, "slept\n"), err
    shown = [guild_hall("show", run, "--json").json for run in runs]
    assert [(run["status"], run["reason"]) for run in shown] == [("paused", "by the user"), ("completed", None)]
    assert guild_hall("resume", runs[0]).out == "slept\n"
    _check_run_survives_its_terminal(guild_hall)
    _check_ask_at_a_terminal(guild_hall, project)


def _check_run_survives_its_terminal(guild_hall: GuildWithHall) -> None:
    process = guild_hall.start("run", "scribe", "go")
    run = wait_for_run_id(process)
    process.kill()
    process.wait(TIMEOUT_S)
    log = guild_hall("log", run, "-f")
    assert log.code == 0
    assert "ended" in log.out.splitlines()[-1]
    assert guild_hall("show", run, "--json").json["output"] == "slept"


def _check_ask_at_a_terminal(guild_hall: GuildWithHall, project: Path) -> None:
    put_worker(project)
    put_script(project, WRITE, DONE)
    terminal = Terminal(guild_hall, "run", "scribe", "go")
    try:
        terminal.wait_for("Allow this call?")
        terminal.type("yes\n")
        assert terminal.wait_exit() == (0, "done\n")
    finally:
        terminal.close()
    assert (project / "notes" / "a.md").read_text() == "one"


@pytest.mark.req("X-2")
def test_a_run_of_a_killed_hall_is_resumed_by_the_next_hall(
    guild_hall: GuildWithHall, project: Path, home: Home
) -> None:
    desk = write_clerk(project, home, enter("one"), {"sleep": 1.0, **enter("two")}, DONE)
    process = guild_hall.start("run", "clerk", "go")
    run = wait_for_run_id(process)
    wait_until((desk / "book").exists)
    wait_for_line(process, "← enter")
    dead = guild_hall.kill_hall()
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, out) == (7, "")
    assert "exited" in err
    assert home.address.exists(), "a killed hall cannot delete its file"
    assert guild_hall("ls", "--json").json["needs_you"]["runs"][0]["status"] == "interrupted"
    put_worker(project, "other", sandboxes=None, tool_rules=None)
    begun = guild_hall.start("run", "other", "go")  # anything that needs a hall
    wait_until(lambda: (desk / "book").read_text().split() == ["one", "two"])
    log = guild_hall("log", run, "-f", "--json")
    assert guild_hall.hall().pid != dead.pid
    kinds = [json.loads(line)["kind"] for line in log.out.splitlines()]
    assert kinds.count("resumed") == 1
    assert kinds.count("tool_started") == 2
    assert kinds[-1] == "ended"
    assert (desk / "book").read_text().split() == ["one", "two"]
    assert guild_hall("replay", run).code == 0
    begun.kill()


@pytest.mark.req("X-2")
def test_an_interrupted_call_is_not_repeated_by_the_next_hall(
    guild_hall: GuildWithHall, project: Path, home: Home
) -> None:
    desk = write_clerk(project, home, enter("one"), DONE)
    (desk / "hold-one").touch()
    process = guild_hall.start("run", "clerk", "go")
    run = wait_for_run_id(process)
    wait_until((desk / "held-one").exists)
    guild_hall.kill_hall()
    process.communicate(timeout=TIMEOUT_S)
    (desk / "hold-one").unlink()
    resumed = guild_hall("resume", run, "--output", "json")  # starts a hall, which resumes the run
    assert resumed.json["status"] == "waiting", resumed
    (ask,) = resumed.json["asks"]
    assert ask["kind"] == "interrupted_call"
    done = guild_hall("answer", ask["ask"], "done", "--output", "json")
    assert done.json["status"] == "completed"
    assert (desk / "book").read_text() == "one\n"


def test_a_stopped_hall_pauses_its_runs_and_the_next_hall_resumes_them_unless_the_user_paused_them(
    guild_hall: GuildWithHall, project: Path
) -> None:
    put_worker(project, tool_rules=None)
    put_script(project, {"sleep": 20, "say": "slept"})
    mine, theirs = guild_hall.start("run", "scribe", "mine"), guild_hall.start("run", "scribe", "theirs")
    paused, stopped = wait_for_run_id(mine), wait_for_run_id(theirs)
    mine.send_signal(signal.SIGINT)
    assert mine.wait(TIMEOUT_S) == 130
    pid = guild_hall.hall().pid
    watched = os.pidfd_open(pid)
    os.kill(pid, signal.SIGTERM)
    _, err = theirs.communicate(timeout=TIMEOUT_S)
    assert theirs.returncode == 130
    assert f"{stopped} paused" in err
    assert select.select([watched], [], [], TIMEOUT_S)[0]
    os.close(watched)
    put_script(project, DONE)
    assert guild_hall("run", "scribe", "another").code == 0
    wait_until(lambda: guild_hall("show", stopped, "--json").json["status"] == "completed")
    assert guild_hall("show", paused, "--json").json["status"] == "paused"


def test_a_command_during_the_shutdown_waits_and_starts_a_new_hall(
    guild_hall: GuildWithHall, project: Path, home: Home
) -> None:
    desk = write_clerk(project, home, enter("one"), DONE)
    (desk / "hold-one").touch()  # the hall gives the call some time to end, so it exits late
    process = guild_hall.start("run", "clerk", "go")
    run = wait_for_run_id(process)
    wait_until((desk / "held-one").exists)
    old = guild_hall.hall()
    os.kill(old.pid, signal.SIGTERM)
    put_worker(project, "other", sandboxes=None, tool_rules=None)
    put_script(project, DONE)
    assert guild_hall("run", "other", "go").out == "done\n"
    assert process.wait(TIMEOUT_S) == 130
    assert guild_hall.hall().pid != old.pid
    # The effect of the interrupted call is unknown, so the run asks.
    wait_until(lambda: guild_hall("show", run, "--json").json["status"] == "waiting")
    home.address.unlink()
    assert "Stopped the hall" in guild_hall("hall", "stop").out, "the hall is found by its lock as well"


def test_an_idle_hall_exits(guild_hall: GuildWithHall, project: Path, home: Home) -> None:
    write_settings(home, hall={"idle": "0.2s"})
    put_worker(project, tool_rules=None)
    put_script(project, {"sleep": 0.6, "say": "slept"})
    assert guild_hall("run", "scribe", "go").out == "slept\n", "a run keeps the hall alive beyond the idle time"
    first = find_hall(home)
    wait_until(lambda: find_hall(home) is None)
    assert not home.address.exists()
    wait_until(lambda: first is None or has_exited(first.pid))
    assert guild_hall("run", "scribe", "go").out == "slept\n"


def first_run(home: Home) -> str:
    with closing(sqlite3.connect(home.database)) as connection:
        return connection.execute("SELECT id FROM runs ORDER BY rowid").fetchone()[0]


def test_a_run_waits_while_the_disk_refuses_writes_and_then_continues(
    guild_hall: GuildWithHall, project: Path, home: Home
) -> None:
    put_worker(project, tool_rules=None)
    put_script(project, {"sleep": 1.5, "say": "done"})
    assert guild_hall("ls", "--json").code == 0
    assert guild_hall("trust", "--yes").code == 0
    hall = guild_hall.hall().pid
    process = guild_hall.start("run", "scribe", "go")
    wait_until(lambda: guild_hall("hall", "status", "--json").json["runs"] == 1)
    resource.prlimit(hall, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))  # the system refuses every write
    wait_until(lambda: guild_hall("run", "scribe", "another").code == 7)
    refused = guild_hall("run", "scribe", "another")
    assert f"disk I/O error at {home.database}" in refused.err, refused
    assert "report" not in refused.err
    run = first_run(home)
    assert process.stderr is not None
    while "disk I/O error" not in (line := process.stderr.readline()):
        assert line, "the command ended without reporting the cause"
    assert "Runs resume automatically." in line
    resource.prlimit(hall, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, "done\n"), err
    assert guild_hall("show", run, "--json").json["status"] == "completed"


def test_runs_of_a_hall_that_stopped_with_a_failing_disk_resume_with_the_next_hall(
    guild_hall: GuildWithHall, project: Path, home: Home
) -> None:
    put_worker(project, tool_rules=None)
    put_script(project, {"sleep": 1.5, "say": "done"})
    process = guild_hall.start("run", "scribe", "go")
    wait_until(lambda: guild_hall("hall", "status", "--json").json.get("runs") == 1)
    hall = guild_hall.hall().pid
    resource.prlimit(hall, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    wait_until(lambda: guild_hall("run", "scribe", "another").code == 7)
    assert guild_hall("hall", "stop").code == 0
    assert has_exited(hall)
    process.communicate(timeout=30)
    run = first_run(home)
    resumed = guild_hall("resume", run)
    assert resumed.out == "done\n", resumed


def run_hint(guild: GuildWithHall, err: str) -> CommandResult:
    """Execute the command at the end of the last line of an error, exactly as it is printed."""
    _, _, hint = err.strip().splitlines()[-1].rpartition(": guild ")
    assert hint, err
    return guild(*shlex.split(hint))


def test_the_hint_after_the_death_of_a_hall_resumes_the_run(guild_hall: GuildWithHall, project: Path) -> None:
    put_worker(project, tool_rules=None)
    put_script(project, {"sleep": 60, "say": "late"})
    process = guild_hall.start("run", "scribe", "go")
    wait_for_run_id(process)
    guild_hall.kill_hall()
    put_script(project, DONE)
    _, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 7
    assert run_hint(guild_hall, err).out == "done\n"


@pytest.mark.parametrize("lost", ["home", "database"])
def test_followers_learn_that_the_home_or_its_database_is_lost(
    guild_hall: GuildWithHall, project: Path, home: Home, lost: str
) -> None:
    put_worker(project, tool_rules=None)
    put_script(project, {"sleep": 60, "say": "late"})
    process = guild_hall.start("run", "scribe", "go")
    run = wait_for_run_id(process)
    hall = guild_hall.hall()
    moved = home.path if lost == "home" else home.database
    away = moved.rename(moved.with_name("away"))
    _, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 7, err
    assert f"the hall stops: {home.database} was moved, removed or replaced" in err
    assert "lost" not in err
    wait_until(lambda: has_exited(hall.pid))
    assert "Traceback" not in (away / home.log.name if lost == "home" else home.log).read_text()
    put_script(project, DONE)
    away.rename(moved)
    listed = run_hint(guild_hall, err).out
    assert f"guild resume {run}" in listed
    assert guild_hall("resume", run).out == "done\n"


@pytest.mark.parametrize("embedded", ["0", "1"])
def test_a_home_that_cannot_be_written_is_named(home: Home, project: Path, guild: Guild, embedded: str) -> None:
    put_worker(project, tool_rules=None)
    put_script(project, DONE)
    program = Path(sys.executable).with_name("guild")
    command = ["bash", "-c", f"ulimit -f 0; exec {program} run scribe go"]  # the system refuses every write
    env = {**guild.environment(), EMBEDDED_VARIABLE: embedded}
    refused = subprocess.run(command, capture_output=True, text=True, env=env, cwd=project, check=False)
    assert refused.returncode == 7, refused
    assert str(home.path) in refused.stderr
    assert "File too large" in refused.stderr


def test_simultaneous_commands_start_one_hall(guild_hall: GuildWithHall, project: Path, home: Home) -> None:
    put_worker(project, tool_rules=None)
    put_script(project, DONE)
    processes = [guild_hall.start("run", "scribe", str(number)) for number in range(8)]
    for process in processes:
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out) == (0, "done\n"), err
    assert home.log.read_text().count(" is listening on ") == 1
    assert len(guild_hall("ls", "--json").json["done"]) == 8


def test_an_address_file_is_used_only_if_it_is_valid_and_of_this_version(
    guild_hall: GuildWithHall, project: Path, home: Home
) -> None:
    put_worker(project, tool_rules=None)
    put_script(project, DONE)
    write_settings(home)
    left = {"pid": os.getpid(), "boot": "b-2222222222", "version": "0.1.0", "since": "x", "token": "t"}
    home.address.write_text(json.dumps({**left, "url": "http://127.0.0.1:9"}))
    assert guild_hall("ls").code == 0
    assert guild_hall("run", "scribe", "go").code == 0
    written = json.loads(home.address.read_text())
    for text in (
        "",
        "nonsense",
        "[]",
        json.dumps({**written, "url": "http://evil.example:80"}),
        json.dumps({"pid": 1}),
    ):
        home.address.write_text(text)
        assert guild_hall("ls", "--json").code == 0, "read commands work without the file"
    home.address.write_text(json.dumps(written))
    home.address.chmod(0o644)
    refused = guild_hall("ls")
    assert refused.code == 7
    assert "other users can read or change it" in refused.err
    home.address.chmod(0o600)
    home.address.write_text(json.dumps({**written, "version": "0.0.1"}))
    for words in (["ls"], ["run", "scribe", "go"]):
        refused = guild_hall(*words)
        assert refused.code == 7
        assert "version 0.0.1" in refused.err.splitlines()[0]
        assert "guild hall stop" in refused.err.splitlines()[1]
    assert guild_hall("hall", "status").code == 0
    assert guild_hall("hall", "stop").code == 0
    assert guild_hall("run", "scribe", "go").code == 0


def test_each_command_sends_its_own_variables_and_keys(
    guild_hall: GuildWithHall, project: Path, home: Home, tmp_path: Path
) -> None:
    """No variable from the start of the hall reaches a tool, and no key is stored."""
    write_settings(home, env=["ALLOWED"])
    write_clerk(project, home, {"call": "surroundings", "with": {}}, DONE)
    first = {"ALLOWED": "of the first", "HALL_ONLY": "of the hall", "TAVILY_API_KEY": "tvly-0123456789abcdef"}
    seen: list[dict[str, str]] = []
    for env in (first, {"ALLOWED": "of the second"}, {}):
        run = guild_hall("run", "clerk", "go", "--output", "json", env=env).json["run"]
        entries = [json.loads(line) for line in guild_hall("log", run, "--json").out.splitlines()]
        (ended,) = [entry for entry in entries if entry["kind"] == "tool_ended"]
        seen.append(json.loads(ended["data"]["result"]["content"][0]["text"]))
    assert [environ.get("ALLOWED") for environ in seen] == ["of the first", "of the second", None]
    assert not any({"HALL_ONLY", "TAVILY_API_KEY", "GUILDHALL_HOME"} & environ.keys() for environ in seen)
    answers = tmp_path / "provider.yaml"
    answers.write_text(json.dumps({"workers": {"*": [[{"say": "from the provider"}]]}, "repeat": True}))
    put_worker(project, "asker", sandboxes=None, tool_rules=None, model="anthropic:claude-sonnet-4-5")
    without = guild_hall("run", "asker", "go")
    assert without.code == 2
    assert "ANTHROPIC_API_KEY" in without.err
    with ScriptedServer(answers) as server:
        key = {"ANTHROPIC_API_KEY": "script-asker", "ANTHROPIC_BASE_URL": server.anthropic_url}
        ran = guild_hall("run", "asker", "go", env=key)
        assert ran.out == "from the provider\n", ran.err
    assert guild_hall("run", "asker", "go").code == 2, "the hall does not keep the key of a request"
    kept = read_all_files(home)
    assert b"script-asker" not in kept
    assert b"tvly-0123456789abcdef" not in kept


def test_a_failed_start_is_reported_with_its_reason(guild_hall: GuildWithHall, project: Path, home: Home) -> None:
    put_worker(project, tool_rules=None)
    put_script(project, DONE)
    write_settings(home)
    for text, code, message in (
        ('{"hall": {"idle": "soon"}}', 2, "invalid duration"),
        ("projects: [{name: x}]\nrepos: []\n", 7, "belongs to another program"),
    ):
        home.settings.write_text(text)
        failed = guild_hall("run", "scribe", "go")
        assert failed.code == code, failed
        assert message in failed.err
        assert find_hall(home) is None


def test_no_hall_starts_while_a_command_uses_the_home(guild_hall: GuildWithHall, project: Path, home: Home) -> None:
    put_worker(project, tool_rules=None)
    put_script(project, {"sleep": 30, "say": "slept"})
    process = guild_hall.start("run", "scribe", "go", env={"GUILDHALL_EMBEDDED": "1"})
    wait_for_run_id(process)
    refused = guild_hall("worker", "new", "helper")
    assert refused.code == 7
    assert f"another guild command (pid {process.pid}" in refused.err
    assert guild_hall("ls", "--json").json["working"], "read commands work"
    process.kill()
