"""`guild run` in scripts and pipes: the result on standard output, everything else on standard error."""

from __future__ import annotations

import json
import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.cli.places import ASKING, GUILD, SCRIPT, WORKER, make_project

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Guild

RESULT = {"run", "status", "output", "error", "usage", "cost_usd", "runs", "asks"}
ECHO = 'repeat: true\nworkers:\n  scribe:\n    - - {expect: "EXPECTED", say: heard}\n'
LONG = "Bring me a cup of tea; " * 10


def test_the_result_goes_to_stdout_and_progress_to_stderr(guild: Guild, scribe: Path) -> None:
    ran = guild("run", "scribe", "go")
    assert (ran.code, ran.out) == (0, "written\n")
    lines = ran.err.splitlines()
    assert re.match(r"Run r-\w{10}: model script:.*writes ./notes.* at most 5.00 USD", lines[0])
    assert lines[1].startswith("→ sandbox_write_text sandbox=notes path=line.md content=one line")
    assert lines[2].startswith("← sandbox_write_text: ")
    assert re.fullmatch(r"r-\w{10} completed: 2 turns, 3,000 tokens in, 300 out, \$0.0135", lines[3])
    assert len(lines) == 4
    assert "\x1b" not in ran.err
    assert (scribe / "notes" / "line.md").read_text() == "one line"


def test_json_is_one_object(guild: Guild, scribe: Path) -> None:
    ran = guild("run", "scribe", "go", "--output", "json")
    assert set(ran.json) == RESULT
    assert ran.json["status"] == "completed"
    assert ran.json["output"] == "written"
    assert ran.json["error"] is None
    assert ran.json["cost_usd"] == pytest.approx(0.0135)
    assert ran.json["usage"]["turns"] == 2
    assert ran.err.count("\n") == 4


@pytest.mark.req("MTG-15")
def test_stream_json_has_one_event_per_line_and_the_result_last(guild: Guild, scribe: Path) -> None:
    ran = guild("run", "scribe", "go", "--output=stream-json")
    events = [json.loads(line) for line in ran.out.splitlines()]
    types = [event["type"] for event in events]
    assert types[0] == "run_started"
    assert types[-2:] == ["run_ended", "result"]
    assert {"text_delta", "tool_use", "tool_result", "turn_end"} <= set(types)
    assert set(events[-1]) == RESULT | {"type"}
    assert "".join(event["text"] for event in events if event["type"] == "text_delta") == "written"
    calls = {event["type"]: event["id"] for event in events if event["type"].startswith("tool_")}
    assert calls["tool_use"] == calls["tool_result"]
    assert {(event["run"], event["root"]) for event in events[:-1]} == {(events[-1]["run"],) * 2}


@pytest.mark.parametrize(
    ("words", "typed"),
    [
        (["scribe", "-"], "fetch tea"),
        (["scribe"], "fetch tea"),
        (["--model", "script:answers.yaml", "workers/scribe.yaml", "--max-turns", "5", "--", "fetch tea"], ""),
    ],
)
def test_the_input_comes_from_the_command_or_from_a_pipe(
    guild: Guild, project: Path, words: list[str], typed: str
) -> None:
    make_project(project, script=ECHO.replace("EXPECTED", "fetch tea"))
    ran = guild("run", *words, input=typed)
    assert (ran.code, ran.out) == (0, "heard\n")


@pytest.mark.parametrize(
    ("words", "typed", "message"),
    [
        (["scribe", "-"], " \n", "the input is empty"),
        (["scribe", ""], "", "the input is empty"),
        (["scribe", "-"], "a\0b", "NUL"),
        (["scribe", "-"], "x" * 1_000_001, "larger than 1,000,000 bytes"),
        (["scribe", "-"], "ü" * 500_001, "larger than 1,000,000 bytes"),
        (["", "go"], "", "invalid worker name: empty"),
        (["x" * 5000, "go"], "", "invalid worker name"),
        (["a\nb", "go"], "", "invalid worker name"),
    ],
)
def test_invalid_inputs_are_usage_errors(
    guild: Guild, scribe: Path, words: list[str], typed: str, message: str
) -> None:
    ran = guild("run", *words, input=typed)
    assert ran.code == 2
    assert message in ran.err
    assert "Traceback" not in ran.err
    assert guild("ls", "--json").json["done"] == []


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("printf 'a\\xff' | {guild} run scribe -", "not UTF-8 text (byte 1)"),
        ("{guild} run scribe \"$(printf 'a\\xff')\"", "not UTF-8 text (byte 1)"),
        ("{guild} run scribe <&-", "standard input is closed"),
        ("{guild} run scribe - 0>/dev/null", "cannot read standard input"),
        ("{guild} mcp <&-", "standard input is not connected to a program"),
    ],
)
def test_an_unreadable_input_is_a_usage_error(guild: Guild, scribe: Path, command: str, message: str) -> None:
    done = subprocess.run(
        ["bash", "-c", command.format(guild=GUILD)], capture_output=True, text=True, env=guild.environment()
    )
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.req("DO-3")
def test_a_run_without_a_model_is_refused(guild: Guild, scribe: Path) -> None:
    (scribe / "guildhall.yaml").unlink()
    ran = guild("run", "scribe", "go", "--output", "json")
    assert ran.code == 2
    assert ran.json["error"]["code"] == "no_model"
    assert "--model" in ran.err
    assert guild("run", "scribe", "go", "--model", "script:answers.yaml").code == 0
    assert guild("run", "scribe", "go", env={"GUILDHALL_MODEL": "script:answers.yaml"}).code == 0
    (scribe / "workers" / "scribe.yaml").write_text(WORKER + "model: script:nowhere.yaml\n")
    lost = guild("run", "scribe", "go", "--model", "script:answers.yaml")
    assert lost.code == 2
    assert "--model is ignored: the worker file sets script:nowhere.yaml" in lost.err
    assert re.search(r"scribe\.yaml:\d+: model: script not found: ", lost.err)
    beaten = guild("run", "scribe", "go", "--model", "script:x.yaml", "--override-model", "script:answers.yaml")
    assert beaten.code == 0
    assert "is not used" not in beaten.err


def test_an_unknown_worker_is_named_with_the_nearest(guild: Guild, scribe: Path) -> None:
    ran = guild("run", "scirbe", "go")
    assert ran.code == 3
    assert "scirbe" in ran.err
    assert "'scribe'" in ran.err


def test_a_wrong_file_is_named_with_line_and_field(guild: Guild, scribe: Path) -> None:
    (scribe / "workers" / "scribe.yaml").write_text(WORKER + "toolz: [Read]\n")
    ran = guild("run", "scribe", "go", "--output", "json")
    assert ran.code == 2
    assert ran.json["error"]["code"] == "invalid_file"
    assert ran.json["error"]["where"].endswith("scribe.yaml:6")
    assert "toolz" in ran.err
    assert "'tools'" in ran.err


def test_a_failed_run_reports_the_reason_and_exits_with_1(guild: Guild, project: Path) -> None:
    make_project(project, script="workers:\n  scribe:\n    - - {fail: 400}\n")
    ran = guild("run", "scribe", "go", "--output", "json")
    assert ran.code == 1
    assert ran.json["status"] == "failed"
    assert ran.json["error"]["code"] == "model_failed"
    assert f"guild: {ran.json['run']} failed: " in ran.err
    assert f"Retry from the last step: guild resume {ran.json['run']}" in ran.err
    assert ran.json["cost_usd"] is None


@pytest.mark.parametrize(
    ("status", "code", "hint"),
    [
        (413, "context_too_long", ""),
        (429, "rate_limited", "Wait a while, then: guild resume RUN"),
        (529, "model_overloaded", "Wait a while, then: guild resume RUN"),
    ],
)
def test_the_hint_of_a_failure_is_printed_once(guild: Guild, project: Path, status: int, code: str, hint: str) -> None:
    failing = ", ".join([f"{{fail: {status}}}"] * 4)
    make_project(project, script=f"workers:\n  scribe:\n    - [{failing}]\n")
    ran = guild("run", "scribe", "go", "--output", "json")
    run, error = ran.json["run"], ran.json["error"]
    assert (ran.code, error["code"]) == (1, code)
    assert error.get("hint", "") == hint.replace("RUN", run)
    assert ran.err.count(f"guild resume {run}") == hint.count("RUN")
    assert "Retry from the last step" not in ran.err


@pytest.mark.parametrize(
    "words", [("run", "nobody", "go"), ("answer", "a-3h8n5w2kcd", "yes"), ("resume", "r-7k2m9x4qpw")]
)
def test_json_is_short_for_output_json(guild: Guild, scribe: Path, words: tuple[str, ...]) -> None:
    assert guild(*words, "--json").json == guild(*words, "--output", "json").json
    assert set(guild(*words, "--json").json) == {"run", "status", "output", "error", "usage", "cost_usd", "asks"}


def test_costs_are_rounded(guild: Guild, project: Path) -> None:
    usage = "usage: {input: 9, output: 0}"
    read = f"{{call: sandbox_read_text, with: {{sandbox: notes, path: a.md}}, {usage}}}"
    script = f"price: {{input: 3, output: 15}}\nworkers:\n  scribe:\n    - [{read}, {read}, {{say: done, {usage}}}]\n"
    make_project(project, script=script)
    ran = guild("run", "scribe", "go", "--output", "json")
    shown = guild("show", ran.json["run"], "--json").json
    assert 3 * (9 * 3 / 1_000_000) != 0.000081, "the sum has a floating-point error"
    for costs in (ran.json, ran.json["usage"], shown, shown["usage"], guild("ls", "--json").json["done"][0]):
        assert costs["cost_usd"] == 0.000081


def test_an_exhausted_script_is_reported_with_its_path(guild: Guild, project: Path) -> None:
    make_project(project, script="price: {input: 1, output: 1}\nworkers:\n  scribe: []\n")
    ran = guild("run", "scribe", "go", "--output", "json")
    assert (ran.code, ran.json["cost_usd"]) == (1, 0.0)
    assert f"{ran.json['run']} failed: {project}/answers.yaml" in ran.err
    assert "0 turns, 0 tokens in, 0 out, $0.00" in ran.err


def test_retries_and_failed_calls_are_printed(guild: Guild, project: Path) -> None:
    script = """workers:
  scribe:
    - - fail: 529
      - calls:
          - {call: sandbox_read_text, with: {sandbox: notes, path: a.md}}
          - {call: sandbox_read_text, with: {sandbox: notes, path: b.md}}
          - {call: Bash, with: {command: ls}}
      - say: done
"""
    make_project(project, script=script)
    (project / "notes").mkdir()
    (project / "notes" / "a.md").write_text("one")
    ran = guild("run", "scribe", "go")
    lines = ran.err.splitlines()
    assert lines[1].startswith("retrying in 0.05 s (2 of 4): ")
    assert "← sandbox_read_text sandbox=notes path=a.md: one" in lines
    assert any(line.startswith("✗ sandbox_read_text sandbox=notes path=b.md: ") for line in lines)
    assert "✗ denied: Bash command=ls" in lines
    assert not any(line.startswith("→ Bash") for line in lines)


@pytest.mark.req("WKR-19")
def test_a_reached_limit_exits_with_5_and_prints_how_to_resume(guild: Guild, scribe: Path) -> None:
    ran = guild("run", "scribe", "go", "--max-turns", "1", "--output", "json")
    assert ran.code == 5
    assert ran.json["error"]["code"] == "limit_reached"
    assert f"guild resume {ran.json['run']}" in ran.err
    assert "max_turns: the run has reached its limit of 1 turn\n" in ran.err
    assert guild("show", ran.json["run"]).out.count("limit_reached") == 1
    for words in (["--max-turns", "1"], ["--max-tokens", "1100"], ["--budget", "0.001"]):
        little = guild("resume", ran.json["run"], *words)
        assert little.code == 2
        assert "already used " in little.err
    again = guild("resume", ran.json["run"], "--max-turns", "9", "--budget", "7")
    assert (again.code, again.out) == (0, "written\n")
    assert re.search(r"Resumed .*at most 7.00 USD; 9 turns", again.err)


@pytest.mark.parametrize(
    ("flag", "written", "message"),
    [("--approve-all", True, "approvals: all granted"), ("--strict", False, "approvals: all denied")],
)
def test_approvals_can_be_decided_by_an_option(
    guild: Guild, project: Path, flag: str, written: bool, message: str
) -> None:
    make_project(project, worker=WORKER + ASKING)
    ran = guild("run", "scribe", "go", flag)
    assert ran.code == 0
    assert message in ran.err.splitlines()[0]
    assert (project / "notes" / "line.md").exists() == written


def test_secrets_are_redacted_in_all_output(guild: Guild, project: Path) -> None:
    secret = "sk-live-abcdefgh12345678"
    make_project(project, script=f"workers:\n  scribe:\n    - - say: the key is {secret} indeed\n")
    ran = guild("run", "scribe", "go", env={"SOME_API_KEY": secret})
    assert ran.out == "the key is [SOME_API_KEY] indeed\n"
    for form in ("json", "stream-json"):
        ran = guild("run", "scribe", "go", "--output", form, env={"SOME_API_KEY": secret})
        assert secret not in ran.out + ran.err
        pieces = [json.loads(line).get("text", "") for line in ran.out.splitlines()]
        assert "".join(pieces) in ("", "the key is [SOME_API_KEY] indeed")


def test_a_closed_stderr_does_not_stop_the_run(guild: Guild, scribe: Path) -> None:
    done = subprocess.run(
        ["bash", "-c", f"{GUILD} run scribe go 2>&1 >/dev/null | head -c1"],
        capture_output=True,
        text=True,
        env=guild.environment(),
    )
    assert done.stdout == "R"
    assert guild("ls", "--json").json["done"][0]["status"] == "completed"


def test_a_closed_stdout_pauses_a_streamed_run(guild: Guild, project: Path) -> None:
    slow = SCRIPT.replace("{say: written,", "{sleep: 0.2, say: written,")
    make_project(project, script=slow)
    command = f"set -o pipefail; {GUILD} run scribe go --output stream-json | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=guild.environment())
    assert done.returncode == 130
    assert "Continue: guild resume" in done.stderr
    assert "Traceback" not in done.stderr
    run = json.loads(done.stdout)["run"]
    assert guild("resume", run).out == "written\n"


def test_structured_output_is_json(guild: Guild, project: Path) -> None:
    (project / "schema.json").write_text('{"type": "object", "properties": {"n": {"type": "integer"}}}')
    make_project(
        project,
        worker=WORKER + "output_schema_ref: schema.json\n",
        script="workers:\n  scribe:\n    - - output: {n: 1}\n",
    )
    ran = guild("run", "scribe", "go")
    assert ran.code == 0
    assert json.loads(ran.out) == {"n": 1}
