"""The hall as a process, through the real command: started, shared, interrupted, killed, idle, of another version."""

from __future__ import annotations

import json
import os
import select
import signal
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.hall.client.discovery import find_hall
from guildhall.testing.scripted_server import ScriptedServer
from tests.cli.places import Terminal
from tests.runs.places import DONE, WRITE, put_script, put_worker, wait_until

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    from guildhall.core.paths import Home
    from tests.conftest import GuildWithHall

PATIENCE = 30.0
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


def lay_out(project: Path, home: Home, *answers: dict[str, Any]) -> Path:
    """A worker with a toolbox of the home's that leaves traces; its desk."""
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


def settings(home: Home, **fields: Any) -> None:
    home.path.mkdir(exist_ok=True, mode=0o700)
    home.settings.write_text(json.dumps(fields))


def line_of(process: subprocess.Popen[str], text: str) -> str:
    """The next line on standard error with this text in it."""
    assert process.stderr is not None
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        line = process.stderr.readline()
        if text in line:
            return line
        assert line, f"{text!r} was not said"
    raise AssertionError(f"{text!r} was not said in time")


def started(process: subprocess.Popen[str]) -> str:
    """The run that a command has just started."""
    return line_of(process, "Run r-").split()[1].rstrip(":")


def gone(pid: int) -> Callable[[], bool]:
    return lambda: not Path(f"/proc/{pid}").exists() or " Z " in Path(f"/proc/{pid}/stat").read_text()


def everything_in(home: Home) -> bytes:
    return b"".join(path.read_bytes() for path in home.path.rglob("*") if path.is_file())


def test_the_first_command_that_works_starts_the_hall_and_others_use_it(
    guild_hall: GuildWithHall, project: Path, home: Home
) -> None:
    put_worker(project, tool_rules=None)
    put_script(project, WRITE, DONE)
    assert guild_hall("ls").code == 0
    assert find_hall(home) is None, "looking needs no hall"
    first = guild_hall.start("run", "scribe", "go", installed=True)  # as a person has it, and the hall that it starts
    said = first.communicate(timeout=PATIENCE)
    assert (first.returncode, said[0]) == (0, "done\n"), said
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
    assert hall.token not in "".join(said) + json.dumps(status)
    assert hall.token.encode() not in Path(f"/proc/{hall.pid}/cmdline").read_bytes()
    assert os.getsid(hall.pid) == hall.pid, "a session of its own"
    stopped = guild_hall("hall", "stop")
    assert str(hall.pid) in stopped.out
    assert gone(hall.pid)()
    assert not home.address.exists()
    assert guild_hall("hall", "status", "--json").json == {"running": False}
    assert guild_hall("hall", "stop").out == "The hall is not running.\n"
    assert len(guild_hall("ls", "--json").json["done"]) == 2
    assert find_hall(home) is None


def test_two_terminals_at_once_and_one_of_them_is_interrupted(guild_hall: GuildWithHall, project: Path) -> None:
    put_worker(project, tool_rules=None)
    put_script(project, {"sleep": 1.5, "say": "slept"})
    one, other = guild_hall.start("run", "scribe", "one"), guild_hall.start("run", "scribe", "other")
    runs = [started(one), started(other)]
    one.send_signal(signal.SIGINT)
    out, err = one.communicate(timeout=PATIENCE)
    assert (one.returncode, out) == (130, "")
    assert f"guild resume {runs[0]}" in err
    out, err = other.communicate(timeout=PATIENCE)
    assert (other.returncode, out) == (0, "slept\n"), err
    shown = [guild_hall("show", run, "--json").json for run in runs]
    assert [(run["status"], run["reason"]) for run in shown] == [("paused", "by the user"), ("completed", None)]
    assert guild_hall("resume", runs[0]).out == "slept\n"
    _goes_on_without_the_terminal_that_started_it(guild_hall)
    _at_a_terminal_an_ask_is_answered(guild_hall, project)


def _goes_on_without_the_terminal_that_started_it(guild_hall: GuildWithHall) -> None:
    process = guild_hall.start("run", "scribe", "go")
    run = started(process)
    process.kill()
    process.wait(PATIENCE)
    log = guild_hall("log", run, "-f")
    assert log.code == 0
    assert "ended" in log.out.splitlines()[-1]
    assert guild_hall("show", run, "--json").json["output"] == "slept"


def _at_a_terminal_an_ask_is_answered(guild_hall: GuildWithHall, project: Path) -> None:
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
def test_killed_in_the_middle_the_run_goes_on_with_the_next_hall(
    guild_hall: GuildWithHall, project: Path, home: Home
) -> None:
    desk = lay_out(project, home, enter("one"), {"sleep": 1.0, **enter("two")}, DONE)
    process = guild_hall.start("run", "clerk", "go")
    run = started(process)
    wait_until((desk / "book").exists)
    line_of(process, "← enter")
    dead = guild_hall.kill_hall()
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (7, "")
    assert "exited" in err
    assert home.address.exists(), "it had no time to tidy up"
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
def test_an_effect_that_was_cut_off_is_not_repeated_by_the_next_hall(
    guild_hall: GuildWithHall, project: Path, home: Home
) -> None:
    desk = lay_out(project, home, enter("one"), DONE)
    (desk / "hold-one").touch()
    process = guild_hall.start("run", "clerk", "go")
    run = started(process)
    wait_until((desk / "held-one").exists)
    guild_hall.kill_hall()
    process.communicate(timeout=PATIENCE)
    (desk / "hold-one").unlink()
    resumed = guild_hall("resume", run, "--output", "json")  # starts a hall, which goes on with it by itself
    assert resumed.json["status"] == "waiting", resumed
    (ask,) = resumed.json["asks"]
    assert ask["kind"] == "interrupted_call"
    done = guild_hall("answer", ask["ask"], "done", "--output", "json")
    assert done.json["status"] == "completed"
    assert (desk / "book").read_text() == "one\n"


def test_told_to_leave_it_pauses_and_the_next_one_goes_on_but_not_with_what_a_person_paused(
    guild_hall: GuildWithHall, project: Path
) -> None:
    put_worker(project, tool_rules=None)
    put_script(project, {"sleep": 20, "say": "slept"})
    mine, theirs = guild_hall.start("run", "scribe", "mine"), guild_hall.start("run", "scribe", "theirs")
    paused, stopped = started(mine), started(theirs)
    mine.send_signal(signal.SIGINT)
    assert mine.wait(PATIENCE) == 130
    pid = guild_hall.hall().pid
    watched = os.pidfd_open(pid)
    os.kill(pid, signal.SIGTERM)
    _, err = theirs.communicate(timeout=PATIENCE)
    assert theirs.returncode == 130
    assert f"{stopped} paused" in err
    assert select.select([watched], [], [], PATIENCE)[0]
    os.close(watched)
    put_script(project, DONE)
    assert guild_hall("run", "scribe", "another").code == 0
    wait_until(lambda: guild_hall("show", stopped, "--json").json["status"] == "completed")
    assert guild_hall("show", paused, "--json").json["status"] == "paused"


def test_a_command_that_comes_while_the_hall_leaves_waits_and_starts_another(
    guild_hall: GuildWithHall, project: Path, home: Home
) -> None:
    desk = lay_out(project, home, enter("one"), DONE)
    (desk / "hold-one").touch()  # the call is given some time to end: the hall takes a while to leave
    process = guild_hall.start("run", "clerk", "go")
    run = started(process)
    wait_until((desk / "held-one").exists)
    old = guild_hall.hall()
    os.kill(old.pid, signal.SIGTERM)
    put_worker(project, "other", sandboxes=None, tool_rules=None)
    put_script(project, DONE)
    assert guild_hall("run", "other", "go").out == "done\n"
    assert process.wait(PATIENCE) == 130
    assert guild_hall.hall().pid != old.pid
    wait_until(
        lambda: guild_hall("show", run, "--json").json["status"] == "waiting"
    )  # it was cut off: what came of it?
    home.address.unlink()
    assert "Stopped the hall" in guild_hall("hall", "stop").out, "it is known by its lock, too"


def test_it_leaves_when_nothing_lives_in_it(guild_hall: GuildWithHall, project: Path, home: Home) -> None:
    settings(home, hall={"idle": "0.2s"})
    put_worker(project, tool_rules=None)
    put_script(project, {"sleep": 0.6, "say": "slept"})
    assert guild_hall("run", "scribe", "go").out == "slept\n", "a run keeps it, though it is longer than that"
    first = find_hall(home)
    wait_until(lambda: find_hall(home) is None)
    assert not home.address.exists()
    wait_until(lambda: first is None or gone(first.pid)())
    assert guild_hall("run", "scribe", "go").out == "slept\n"


def test_commands_that_come_at_once_start_one_hall(guild_hall: GuildWithHall, project: Path, home: Home) -> None:
    put_worker(project, tool_rules=None)
    put_script(project, DONE)
    processes = [guild_hall.start("run", "scribe", str(number)) for number in range(8)]
    for process in processes:
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out) == (0, "done\n"), err
    assert home.log.read_text().count(" serves at ") == 1
    assert len(guild_hall("ls", "--json").json["done"]) == 8


def test_a_hall_s_file_is_believed_only_where_it_is_right_and_of_this_version(
    guild_hall: GuildWithHall, project: Path, home: Home
) -> None:
    put_worker(project, tool_rules=None)
    put_script(project, DONE)
    settings(home)
    left = {"pid": os.getpid(), "boot": "b-2222222222", "version": "0.1.0", "since": "x", "token": "t"}
    home.address.write_text(json.dumps({**left, "url": "http://127.0.0.1:9"}))
    assert guild_hall("ls").code == 0
    assert guild_hall("run", "scribe", "go").code == 0
    told = json.loads(home.address.read_text())
    for text in ("", "nonsense", "[]", json.dumps({**told, "url": "http://evil.example:80"}), json.dumps({"pid": 1})):
        home.address.write_text(text)
        assert guild_hall("ls", "--json").code == 0, "looking works without it"
    home.address.write_text(json.dumps(told))
    home.address.chmod(0o644)
    refused = guild_hall("ls")
    assert refused.code == 7
    assert "other users can read or change it" in refused.err
    home.address.chmod(0o600)
    home.address.write_text(json.dumps({**told, "version": "0.0.1"}))
    for words in (["ls"], ["run", "scribe", "go"]):
        refused = guild_hall(*words)
        assert refused.code == 7
        assert "version 0.0.1" in refused.err.splitlines()[0]
        assert "guild hall stop" in refused.err.splitlines()[1]
    assert guild_hall("hall", "status").code == 0
    assert guild_hall("hall", "stop").code == 0
    assert guild_hall("run", "scribe", "go").code == 0


def test_each_terminal_brings_its_own_variables_and_keys(
    guild_hall: GuildWithHall, project: Path, home: Home, tmp_path: Path
) -> None:
    """Nothing of the environment that the hall was started in reaches a tool, and a key is nowhere on record."""
    settings(home, env=["ALLOWED"])
    lay_out(project, home, {"call": "surroundings", "with": {}}, DONE)
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
    assert guild_hall("run", "asker", "go").code == 2, "the key went with the request that brought it"
    kept = everything_in(home)
    assert b"script-asker" not in kept
    assert b"tvly-0123456789abcdef" not in kept


def test_a_start_that_fails_says_why(guild_hall: GuildWithHall, project: Path, home: Home) -> None:
    put_worker(project, tool_rules=None)
    put_script(project, DONE)
    settings(home)
    for text, code, said in (
        ('{"hall": {"idle": "soon"}}', 2, "is not a duration"),
        ("projects: [{name: x}]\nrepos: []\n", 7, "belongs to another program"),
    ):
        home.settings.write_text(text)
        failed = guild_hall("run", "scribe", "go")
        assert failed.code == code, failed
        assert said in failed.err
        assert find_hall(home) is None


def test_a_home_that_a_command_uses_by_itself_has_no_room_for_a_hall(
    guild_hall: GuildWithHall, project: Path, home: Home
) -> None:
    put_worker(project, tool_rules=None)
    put_script(project, {"sleep": 30, "say": "slept"})
    process = guild_hall.start("run", "scribe", "go", env={"GUILDHALL_EMBEDDED": "1"})
    started(process)
    refused = guild_hall("worker", "new", "helper")
    assert refused.code == 7
    assert f"another guild command (pid {process.pid}" in refused.err
    assert guild_hall("ls", "--json").json["working"], "looking works"
    process.kill()
