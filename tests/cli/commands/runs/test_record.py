"""Commands that read the database: ls, show, log, cost, replay, doctor."""

from __future__ import annotations

import io
import json
import re
import shlex
import subprocess
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from guildhall.cli.commands.runs import cost, ls
from guildhall.cli.format.journal import entry_line
from guildhall.cli.format.runs import age
from guildhall.cli.screen import Screen
from guildhall.core.clock import SystemClock, stamp
from guildhall.core.request_frame import RecordedFrame
from guildhall.members.jobs import MemberResponse, parse_status
from guildhall.members.model import ActiveJob
from guildhall.runs.model import Ask, Question, Run, RunRequest, Usage
from guildhall.runs.record.entries import Entry
from tests.cli.places import ASKING, GUILD, SCRIPT, WORKER, make_project
from tests.cli.test_screen import SECRET

if TYPE_CHECKING:
    from guildhall.runs.model import RunStatus
    from tests.conftest import Guild


def run_scribe(guild: Guild) -> str:
    ran = guild("run", "scribe", "go", "--output", "json")
    assert ran.code == 0, ran.err
    return ran.json["run"]


def test_a_long_log_prints_its_end_unless_all_is_requested(guild: Guild, project: Path) -> None:
    read = "{call: sandbox_list, with: {sandbox: notes}}"
    make_project(
        project,
        script=f"repeat: true\nworkers:\n  scribe:\n    - - calls: [{', '.join([read] * 260)}]\n      - say: written\n",
    )
    run = run_scribe(guild)
    everything = guild("log", run, "--all")
    assert len(everything.out.splitlines()) > 500
    ran = guild("log", run)
    assert ran.out.splitlines() == everything.out.splitlines()[-500:]
    assert f"All: guild log {run} --all" in ran.err
    assert len(guild("log", run, "--json").out.splitlines()) == len(everything.out.splitlines())


def test_an_empty_home_has_nothing_to_list(guild: Guild, project: Path) -> None:
    for command in ("ls", "cost"):
        ran = guild(command)
        assert (ran.code, ran.out) == (0, "")
        assert ran.err
    assert guild("ls", "--json").json == {
        "needs_you": {"asks": [], "runs": []},
        "working": [],
        "done": [],
        "workflows": [],
        "members": [],
        "meetings": [],
        "commissions": [],
    }
    assert guild("cost", "--json").json == {"lines": [], "total_usd": 0}


def make_run(name: str, *, status: RunStatus = "completed", cost: float | None = None) -> Run:
    return Run(
        id=name,
        root=name,
        parent=None,
        ordinal=0,
        worker="scribe",
        model="m",
        status=status,
        reason=None,
        request=RunRequest(worker="scribe", input="go"),
        frame=RecordedFrame(cwd=Path("/here"), root=Path("/here")),
        error=None,
        output=None,
        created_at="2026-01-10T12:00:00.000Z",
        ended_at=None,
        usage=Usage(cost_usd=cost),
        cost_usd=cost,
    )


def test_ls_shows_the_newest_ten_and_all_on_demand() -> None:
    groups = ls.Groups([make_run(f"r-{number}") for number in range(11)], [])
    for everything, shown in ((False, 10), (True, 11)):
        screen = Screen(out=io.StringIO(), err=io.StringIO(), environ={})
        ls.print_groups(groups, screen, Path("/here"), everything=everything)
        assert isinstance(screen.out, io.StringIO)
        assert isinstance(screen.err, io.StringIO)
        heading, *lines = screen.out.getvalue().splitlines()
        assert heading == "Recent"
        assert [line.split()[0] for line in lines] == [f"r-{number}" for number in range(shown)]
        assert screen.err.getvalue() == ("" if everything else "1 more: guild ls --all\n")


def test_ls_groups_runs_by_status() -> None:
    every: list[RunStatus] = ["running", "waiting", "paused", "interrupted", "completed", "failed", "cancelled"]
    groups = ls.Groups([make_run(status, status=status) for status in every], [])
    assert [run.id for run in groups.stopped_runs] == ["waiting", "paused", "interrupted"]
    assert [run.id for run in groups.running_runs] == ["running"]
    assert [run.id for run in groups.ended_runs] == ["completed", "failed", "cancelled"]


def test_ls_shows_folder_age_and_expiry_and_redacts_secrets() -> None:
    """Also check that a run with an ask is listed once, and that secrets are replaced before a line is cut."""
    ended = replace(
        make_run("r-1"),
        request=RunRequest(worker="scribe", input=f"{'x' * 45} {SECRET}"),
        frame=RecordedFrame(cwd=Path("/elsewhere"), root=Path("/elsewhere")),
        ended_at=stamp(SystemClock().now()),
    )
    ask = Ask(
        id="a-1",
        run="r-3",
        root="r-2",
        kind="approval",
        key="m1",
        subject="s",
        question=Question(title="scribe wants to call Write", body=f"path: {'p' * 38} {SECRET}", choices=("yes", "no")),
        status="open",
        answer=None,
        created_at=ended.created_at,
        expires_at=stamp(SystemClock().now() + timedelta(hours=2, minutes=5)),
        closed_at=None,
    )
    groups = ls.Groups([ended, make_run("r-2", status="paused")], [ask])
    screen = Screen(out=io.StringIO(), err=io.StringIO(), environ={"MY_API_KEY": SECRET})
    ls.print_groups(groups, screen, Path("/here"), everything=False)
    assert isinstance(screen.out, io.StringIO)
    _, asked, _, done = screen.out.getvalue().splitlines()
    assert re.search(
        r"a-1 +approval +scribe wants to call Write: path: p+ \[MY_.* r-3 for 2 h +guild answer a-1$", asked
    )
    assert re.search(r"x \[MY… \(in /elsewhere\) +just now", done)
    assert SECRET[:5] not in screen.out.getvalue()


def test_ls_lists_a_job_of_a_member_once_with_its_age() -> None:
    started = stamp(SystemClock().now() - timedelta(hours=3))
    status = {"status": "running", "description": "d", "startedAt": started}
    asks = {**status, "jobId": "j-1", "questions": ["Red?\x1b[1m", "Blue?"], "waiting": True}
    odd = {**status, "jobId": "j-3", "startedAt": "at dawn"}
    jobs = [
        parse_status(MemberResponse.parse(one, "it"), "ant")
        for one in (asks, {**status, "jobId": "j-2", "questions": ["When?"]}, odd)
    ]
    members = [ActiveJob(member="ant", details=job, project="/a b") for job in jobs]
    screen = Screen(out=io.StringIO(), err=io.StringIO(), environ={})
    ls.print_groups(ls.Groups([], [], members=members), screen, Path("/here"), everything=False)
    assert isinstance(screen.out, io.StringIO)
    assert [" ".join(line.split()) for line in screen.out.getvalue().splitlines()] == [
        "Needs you",
        "ant/j-1 question Red?\\x1b[1m cd '/a b' && guild answer ant/j-1 \"...\" --question 'Red?'",
        "ant/j-1 question Blue? cd '/a b' && guild answer ant/j-1 \"...\" --question 'Blue?'",
        "ant/j-2 question When? cd '/a b' && guild answer ant/j-2 \"...\"",
        "Working",
        "ant/j-2 ant d (in /a b) 3 h ago",
        "ant/j-3 ant d (in /a b) at dawn",
    ]


def test_a_run_is_listed_as_working_until_its_process_is_killed(guild: Guild, project: Path) -> None:
    make_project(project, script=SCRIPT.replace("{say: written,", "{sleep: 60, say: written,"))
    process = guild.start("run", "scribe", "go")
    assert process.stderr
    run = process.stderr.readline().split()[1].rstrip(":")
    assert guild("ls").out.splitlines()[0] == "Working"
    assert guild("show", run, "--json").json["status"] == "running"
    refused = guild("run", "scribe", "go")
    assert refused.code == 7
    assert "in use" in refused.err
    process.kill()
    process.wait(5)
    stopped = guild("ls").out
    assert stopped.splitlines()[0] == "Needs you"
    assert f"guild resume {run}" in stopped


def test_show_prints_all_about_a_run(guild: Guild, scribe: Path) -> None:
    run = run_scribe(guild)
    out = guild("show", run).out
    for part in (run, "scribe", "completed", "2 turns", "$0.0135", "\ninput\ngo\n", "\noutput\nwritten\n"):
        assert part in out
    shown = guild("show", run, "--json").json
    assert shown["messages"]
    assert shown["asks"] == []


def test_show_prints_why_a_run_failed_and_the_next_command(guild: Guild, scribe: Path) -> None:
    run = guild("run", "scribe", "go", "--max-turns", "1", "--output", "json").json["run"]
    out = guild("show", run).out
    assert "limit_reached" in out
    assert f"guild resume {run}" in out
    assert "ended" in out


def test_show_prints_all_about_an_ask(guild: Guild, project: Path) -> None:
    make_project(project, worker=WORKER + ASKING)
    result = guild("run", "scribe", "go", "--output", "json").json
    ask = result["asks"][0]["ask"]
    ran = guild("show", ask)
    assert "scribe wants to call sandbox_write_text" in ran.out
    assert "one line" in ran.out
    assert f"guild answer {ask}" in ran.err
    assert guild("show", ask, "--json").json["run"] == result["run"]
    waiting = guild("show", result["run"])
    assert f"{ask} open: scribe wants" in waiting.out
    guild("deny", ask, "--note", "not now")
    assert "no (not now), by person" in guild("show", ask).out
    assert f"{ask} no: scribe wants" in guild("show", result["run"]).out
    assert "The user denied this call. Do not repeat it unchanged. not now" in guild("log", ask).out
    assert guild("log", ask).out == guild("log", result["run"]).out


@pytest.mark.parametrize(
    ("command", "name"),
    [
        *((command, "r-2222222222") for command in ("show", "log", "resume", "replay")),
        ("show", "a-2222222222"),
        *(("show", name) for name in ("nonsense", "", "../../x", "r-2222222222\n", "x" * 5000)),
        *((command, "nonsense") for command in ("log", "resume", "replay")),
        ("resume", "a-2222222222"),
    ],
)
def test_unknown_ids_are_not_found(guild: Guild, scribe: Path, command: str, name: str) -> None:
    ran = guild(command, name)
    if (command, name[:2]) == ("resume", "a-"):
        assert f"guild answer {name}" in ran.err
    assert ran.code == 3
    assert ran.out == ""
    assert len(ran.err) < 300
    assert "Traceback" not in ran.err


def test_the_log_has_a_line_for_each_entry(guild: Guild, scribe: Path) -> None:
    run = run_scribe(guild)
    lines = guild("log", run).out.splitlines()
    entries = [json.loads(line) for line in guild("log", run, "--json").out.splitlines()]
    assert len(lines) == len(entries)
    assert [line.split()[2] for line in lines] == [entry["kind"] for entry in entries]
    assert "calls sandbox_write_text" in "\n".join(lines)
    assert "says written" in "\n".join(lines)
    assert guild("log", run, "-f").out.splitlines() == lines


def test_log_follow_ends_when_the_run_stops(guild: Guild, project: Path) -> None:
    make_project(project, worker=WORKER + ASKING, script=SCRIPT.replace("{say: written,", "{sleep: 0.2, say: written,"))
    result = guild("run", "scribe", "go", "--output", "json").json
    waits = guild("log", result["run"], "-f")
    assert waits.out.splitlines()[-1].endswith("waiting: ask")
    assert f"guild answer {result['asks'][0]['ask']}" in waits.err
    running = guild.start("approve", result["asks"][0]["ask"])
    assert running.stderr
    assert "Resumed " in running.stderr.readline() + running.stderr.readline()
    followed = guild("log", result["run"], "--follow")
    assert (followed.code, followed.err) == (0, "")
    assert followed.out.splitlines()[-1].endswith("completed")
    running.communicate(timeout=30)


def test_invalid_project_settings_do_not_block_read_commands(guild: Guild, scribe: Path) -> None:
    (scribe / "guildhall.yaml").write_text("modle: x\n")
    assert guild("ls").code == 0
    assert "PROBLEM  settings: " in guild("doctor").out
    assert guild("run", "scribe", "go").code == 2


def test_a_closed_pipe_is_not_an_error(guild: Guild, scribe: Path) -> None:
    run = run_scribe(guild)
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {GUILD} log {run} | head -1"],
        capture_output=True,
        text=True,
        env=guild.environment(),
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "assembled" in done.stdout


def test_a_full_disk_is_reported(guild: Guild, scribe: Path) -> None:
    run = run_scribe(guild)
    done = subprocess.run(
        ["bash", "-c", f"{GUILD} log {run} > /dev/full"], capture_output=True, text=True, env=guild.environment()
    )
    assert done.returncode == 1
    assert done.stderr == "guild: cannot write the result: No space left on device\n"


def test_cost_adds_up_the_runs_of_a_worker(guild: Guild, scribe: Path) -> None:
    run_scribe(guild)
    run_scribe(guild)
    costs = guild("cost", "--json").json
    assert costs["total_usd"] == pytest.approx(0.027)
    assert [(line["worker"], line["runs"], line["turns"]) for line in costs["lines"]] == [("scribe", 2, 4)]
    out = guild("cost").out
    assert out.splitlines()[0].split()[:3] == ["worker", "model", "runs"]
    assert out.splitlines()[-1] == "total $0.0270"


def test_replay_agrees_or_shows_the_first_difference(guild: Guild, scribe: Path) -> None:
    run = run_scribe(guild)
    same = guild("replay", run)
    assert same.code == 0
    assert "Replay matches the recording" in same.out
    assert guild("replay", run, "--json").json["same"]
    (scribe / "workers" / "scribe.yaml").write_text(WORKER.replace("Write the", "Write exactly the"))
    other = guild("replay", run)
    assert other.code == 1
    assert "differs at step" in other.out
    assert "exactly" in other.out
    (scribe / "workers" / "scribe.yaml").unlink()
    gone = guild("replay", run, "--json")
    assert (gone.code, gone.json["worker_gone"]) == (0, True)
    assert "Its recorded definition was used" in gone.err


def test_a_run_that_is_over_cannot_be_resumed(guild: Guild, scribe: Path) -> None:
    ran = guild("resume", run_scribe(guild))
    assert ran.code == 1
    assert "cannot resume" in ran.err


def test_doctor_reports_each_check(guild: Guild, scribe: Path) -> None:
    ran = guild("doctor")
    checks = guild("doctor", "--json").json
    assert {check["name"] for check in checks} >= {"python", "home", "keys"}
    assert "\nok       python: " in f"\n{ran.out}"
    assert "\n!        keys: none found (scripted models still work)\n" in ran.out
    missing = [check["name"] for check in checks if check["is_missing"]]
    assert [f"-        {name}: not installed (optional)" for name in missing] == re.findall(r"^- .*", ran.out, re.M)
    assert ran.code == (0 if all(check["ok"] for check in checks) else 1)
    (scribe / "workers" / "broken.yaml").write_text("name: [")
    broken = guild("doctor")
    assert broken.code == 1
    assert re.search(r"PROBLEM  workers: \d+ usable, 1 with errors: broken", broken.out)


def test_the_printed_steps_of_init_work(guild: Guild, project: Path) -> None:
    steps = guild("init", "my guild", "--json").json["next"]
    script = "set -e\n" + "\n".join(step.replace("guild ", f"{shlex.quote(str(GUILD))} ", 1) for step in steps)
    script = script.replace(f"cd 'my {GUILD} '", "cd 'my guild'")
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, stdin=subprocess.DEVNULL, env=guild.environment()
    )
    assert done.returncode == 0, done.stderr
    assert "I greeted Ada and Grace" in done.stdout
    assert "Hello Ada" in (project / "my guild" / "notes" / "greeting.md").read_text()


def test_a_deleted_working_folder_is_reported(guild: Guild, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    done = subprocess.run(
        ["bash", "-c", f"mkdir {gone}; cd {gone}; rmdir {gone}; {GUILD} ls"],
        capture_output=True,
        text=True,
        env=guild.environment(),
    )
    assert done.returncode == 2
    assert "no longer exists" in done.stderr


# lines


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(-5, "just now"), (59, "just now"), (61, "1 min ago"), (7300, "2 h ago"), (200000, "2 d ago")],
)
def test_an_age_is_rounded_to_one_unit(seconds: int, shown: str) -> None:
    now = datetime(2026, 1, 10, tzinfo=UTC)
    then = datetime.fromtimestamp(now.timestamp() - seconds, UTC)
    assert age(then.isoformat(), now) == shown


ASKED = {"tools": "", "answers": "", "reserved_usd": None, "reserved_tokens": 0, "max_tokens": None}
ANSWERED = {"usage": {"input_tokens": 1, "output_tokens": 1}, "cost_usd": None}
NO_FILE = {"content": [{"type": "text", "text": "no such file"}], "is_error": True}
ESCAPE = {"parts": [{"part_kind": "text", "content": "\x1b[2J"}]}
THINKING = {
    "parts": [
        {"part_kind": "thinking", "content": "hmm " * 100},
        {"part_kind": "text", "content": "hello"},
        {"part_kind": "tool-call", "tool_name": "Read"},
    ]
}


@pytest.mark.parametrize(
    ("kind", "data", "text"),
    [
        (
            "tool_refused",
            {"tool": "Write", "arguments": {"a": 1}, "reason": "not declared", "rule": None, "result": {}},
            'Write {"a": 1}: not decl',
        ),
        ("tool_ended", {"result": NO_FILE}, "error: no such file"),
        ("tool_ended", {"result": {"content": [{"type": "image"}]}}, '{"type": "image"}'),
        ("tool_ended", {"result": {}}, ""),
        ("model_asked", {**ASKED, "message": [{"content": "go"}], "attempt": 1}, "attempt 2: go"),
        ("model_asked", {**ASKED, "message": [{"content": ["go", 1]}], "attempt": 0}, '["go", 1]'),
        ("ended", {"status": "completed", "reason": None, "error": None, "output": "x"}, "completed"),
        (
            "ended",
            {"status": "failed", "reason": "limit", "error": {"message": "too long"}, "output": None},
            "failed: too long",
        ),
        ("ended", {"status": "cancelled", "reason": "by you", "error": None, "output": None}, "cancelled: by you"),
        ("model_failed", {"code": "x", "message": "overloaded", "transient": True, "cost_usd": None}, "overloaded"),
        ("answered", {"ask": "a-1", "choice": "no", "note": None, "by": "person"}, "a-1 no"),
        (
            "answered",
            {"ask": "a-1", "choice": "yes", "note": None, "by": "person", "bounds": {"max_turns": 4}},
            "a-1 yes, max_turns now 4",
        ),
        ("limit_asked", {"limit": "max_turns", "value": 2, "ask": "a-1"}, "max_turns 2 reached, a-1 asks for more"),
        (
            "resumed",
            {"was": "interrupted", "reason": None, "bounds": {"budget": 3.0}},
            "was interrupted, budget now 3.0",
        ),
        ("paused", {"status": "paused", "pause": "user", "reason": "by the user"}, "paused: by the user"),
        ("worker_created", {"name": "w", "digest": "d", "files": []}, '"name": "w"'),
        ("model_answered", {**ANSWERED, "response": ESCAPE}, "says \\x1b[2J"),
        ("model_answered", {**ANSWERED, "response": THINKING}, "  says hello; calls Read; thinks hmm"),
    ],
)
def test_a_journal_entry_is_printed_in_one_line(kind: str, data: dict[str, object], text: str) -> None:
    record = {"run": "r-1", "seq": 3, "kind": kind, "key": None, "data": data, "at": "2026-01-10T12:34:56.000Z"}
    line = entry_line(Entry.from_dict(record))
    assert line.startswith(f"   3  12:34:56Z  {kind}")
    assert text in line
    assert "\x1b" not in line


def test_runs_without_a_price_are_counted_separately(guild: Guild, project: Path) -> None:
    line = cost.by_worker_and_model([make_run("r-1", cost=1.0), make_run("r-2")])[0]
    assert (line["cost_usd"], line["unpriced_runs"], line["runs"]) == (1.0, 1, 2)
    make_project(project, script="workers:\n  scribe:\n    - - say: hello\n")
    run_scribe(guild)
    assert "no price" in guild("cost").out
