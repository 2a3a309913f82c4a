"""Asks: answered at the terminal, or answered later while the run is paused."""

from __future__ import annotations

import os
import re
import signal
from typing import TYPE_CHECKING

import pytest

from guildhall.cli.prompt import read_choice
from guildhall.core.errors import UsageError
from tests.cli.places import ASKING, SCRIPT, WORKER, Terminal, make_project
from tests.runs.places import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Guild

    At = Callable[..., Terminal]

TWICE = """price: {input: 3.0, output: 15.0}
repeat: true
workers:
  scribe:
    - - {call: sandbox_write_text, with: {sandbox: notes, path: line.md, content: one}}
      - {call: sandbox_write_text, with: {sandbox: notes, path: line.md, content: one}}
      - say: written
"""


@pytest.fixture
def asking_project(project: Path) -> Path:
    """Return a project whose worker needs approval before it writes."""
    make_project(project, worker=WORKER + ASKING)
    return project


def start_waiting_run(guild: Guild) -> tuple[str, str]:
    """Start a run that waits for an approval, and return the ids of the run and its ask."""
    ran = guild("run", "scribe", "go", "--output", "json")
    assert ran.code == 4, ran.err
    return ran.json["run"], ran.json["asks"][0]["ask"]


# without a terminal


@pytest.mark.req("X-15", "DO-6")
def test_without_a_terminal_the_run_waits_and_the_answer_command_is_printed(guild: Guild, asking_project: Path) -> None:
    ran = guild("run", "scribe", "go")
    assert (ran.code, ran.out) == (4, "")
    answer = re.search(r"guild answer (a-\w{10}) yes", ran.err)
    assert answer
    assert not (asking_project / "notes" / "line.md").exists()
    listed = guild("ls").out
    assert listed.startswith("Needs you\n")
    assert f"guild answer {answer[1]}" in listed
    done = guild("answer", answer[1], "yes")
    assert (done.code, done.out) == (0, "written\n")
    assert (asking_project / "notes" / "line.md").read_text() == "one line"
    assert "Needs you" not in guild("ls").out


@pytest.mark.parametrize(
    ("words", "written"),
    [
        (["answer", "ASK", "ALWAYS"], True),
        (["approve", "ASK"], True),
        (["deny", "ASK", "--note", "use other.md"], False),
    ],
)
def test_each_answer_command_applies_its_answer(
    guild: Guild, asking_project: Path, words: list[str], written: bool
) -> None:
    run, ask = start_waiting_run(guild)
    ran = guild(*[ask if word == "ASK" else word for word in words], "--output", "json")
    assert (ran.code, ran.json["status"], ran.json["run"]) == (0, "completed", run)
    assert (asking_project / "notes" / "line.md").exists() == written
    shown = guild("show", ask, "--json").json
    assert shown["status"] == "applied"
    assert (shown["answer"]["note"] == "use other.md") is not written
    if not written:
        assert "use other.md" in guild("log", run).out


def test_a_wrong_answer_changes_nothing(guild: Guild, asking_project: Path) -> None:
    _, ask = start_waiting_run(guild)
    for words in (["perhaps"], [""], []):
        ran = guild("answer", ask, *words, "--output", "json")
        assert ran.code == 2
        assert ran.json["error"]["code"] == "usage"
        assert "yes, no, always" in ran.err
    assert guild("show", ask, "--json").json["status"] == "open"


def test_an_ask_accepts_one_answer(guild: Guild, asking_project: Path) -> None:
    _, ask = start_waiting_run(guild)
    assert guild("approve", ask).code == 0
    again = guild("deny", ask)
    assert again.code == 1
    assert f"{ask} is closed: it was already answered with 'yes'" in again.err
    shown = guild("show", guild("ls", "--json").json["done"][0]["run"]).out
    assert f"{ask} yes: scribe wants" in shown


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        ("a-2222222222", "unknown ask"),
        ("r-2222222222", "guild resume r-2222222222"),
        ("nonsense", "unknown ask"),
        ("", "unknown ask"),
        ("x" * 10_000, "unknown ask"),
    ],
)
def test_an_unknown_ask_is_not_found(guild: Guild, scribe: Path, ask: str, message: str) -> None:
    ran = guild("answer", ask, "yes")
    assert ran.code == 3
    assert message in ran.err
    assert len(ran.err) < 300


@pytest.mark.req("X-3")
def test_a_run_at_its_budget_pauses_until_the_budget_is_raised(guild: Guild, scribe: Path) -> None:
    ran = guild("run", "scribe", "go", "--budget", "0.006", "--output", "json")
    assert ran.code == 4
    assert ran.json["asks"][0]["kind"] == "limit"
    assert f"guild answer {ran.json['asks'][0]['ask']} yes (or no, 2.50). Details: " in ran.err
    done = guild("answer", ran.json["asks"][0]["ask"], "$2.50")
    assert (done.code, done.out) == (0, "written\n")


# at a terminal


def test_a_denial_sends_its_note_to_the_worker(terminal: At, guild: Guild, asking_project: Path) -> None:
    at = terminal("run", "scribe", "go", env={"NO_COLOR": "1"})
    at.wait_for("Allow this call?")
    at.type("n\n")
    at.wait_for("Reason for the worker")
    at.type("use other.md\n")
    code, _ = at.wait_exit()
    assert code == 0
    assert not (asking_project / "notes" / "line.md").exists()
    assert "use other.md" in at.output
    assert "\x1b[" not in at.raw


def test_always_asks_once(terminal: At, project: Path) -> None:
    make_project(project, worker=WORKER + ASKING, script=TWICE)
    at = terminal("run", "scribe", "go")
    at.wait_for("Allow this call?")
    at.type("a\n")
    assert at.wait_exit() == (0, "written\n")
    assert at.output.count("Allow this call?") == 1


@pytest.mark.req("X-5", "DO-6")
def test_yes_approves_a_single_call(terminal: At, project: Path) -> None:
    make_project(project, worker=WORKER + ASKING, script=TWICE)
    at = terminal("run", "scribe", "go", whole=True)
    for _ in range(2):
        at.wait_for("scribe wants to call sandbox_write_text")
        at.wait_for("Allow this call? [y]es")
        at.type("y\n")
    assert at.wait_exit() == (0, None)
    assert (project / "notes" / "line.md").read_text() == "one"
    assert "\x1b[" in at.raw
    assert at.output.count("written") == 1  # it was streamed, and is not printed again


def test_an_invalid_answer_is_asked_again(terminal: At, asking_project: Path) -> None:
    at = terminal("run", "scribe", "go")
    for nonsense in ("maybe", "", "\x1b[A"):
        at.wait_for("Allow this call?")
        at.type(f"{nonsense}\n")
        at.wait_for("Choose one of: yes, no, always.")
    at.wait_for("Allow this call?")
    at.type("yes\n")
    assert at.wait_exit() == (0, "written\n")


def test_invisible_characters_in_an_approval_are_escaped(terminal: At, project: Path) -> None:
    hidden = r"\x1b[2J\x1b[1;1H safe\u202etxt.exe \u200b" + " " * 200 + r"\n\n  Allow this call? yes\r"
    make_project(project, worker=WORKER + ASKING, script=SCRIPT.replace("one line", hidden))
    at = terminal("run", "scribe", "go", env={"NO_COLOR": "1"})
    at.wait_for("this run):")
    question = at.output[at.output.index("wants to call") :]
    assert "\x1b" not in question
    for char in ("\u202e", "\u200b", "\x1b", "\r"):
        assert char not in question
    asked = question.splitlines()
    assert [line for line in asked[1:-1] if not line.startswith("  │ ")] == []
    assert max(map(len, asked)) <= 100
    at.type("yes\n")
    assert at.wait_exit()[0] == 0


def test_keys_typed_before_the_question_do_not_answer_it(terminal: At, project: Path) -> None:
    make_project(project, worker=WORKER + ASKING, script=SCRIPT.replace("- - call", "- - sleep: 0.2\n        call"))
    at = terminal("run", "scribe", "go")
    at.wait_for("Run r-")
    at.type("yes\nyes\n")
    at.wait_for("Allow this call?")
    at.type("no\n")
    at.wait_for("Reason for the worker")
    at.type("\n")
    assert at.wait_exit()[0] == 0
    assert not (project / "notes" / "line.md").exists()


def test_an_expired_approval_is_not_a_denial(terminal: At, guild: Guild, project: Path) -> None:
    rule = "tool_rules:\n  fs.write: {approval_required: true, timeout: 0.2s}\n"
    make_project(project, worker=WORKER + rule)
    at = terminal("run", "scribe", "go")
    at.wait_for("Allow this call?")
    at.wait_for("Too late: the ask has expired")
    assert at.wait_exit()[0] == 0
    assert not (project / "notes" / "line.md").exists()


def test_an_ask_that_expires_at_the_prompt_of_answer_is_closed(terminal: At, guild: Guild, project: Path) -> None:
    rule = "tool_rules:\n  fs.write: {approval_required: true, timeout: 8s}\n"
    make_project(project, worker=WORKER + rule)
    _, ask = start_waiting_run(guild)
    at = terminal("answer", ask)
    at.wait_for(f"{ask} is closed: it has expired")
    assert at.wait_exit()[0] == 1
    assert "stays open" not in at.output


@pytest.mark.parametrize("command", ["answer", "stop"])
def test_a_prompt_ends_if_the_ask_is_closed_elsewhere(guild_hall: Guild, asking_project: Path, command: str) -> None:
    at = Terminal(guild_hall, "run", "scribe", "go")
    try:
        at.wait_for("Allow this call?")
        assert "Starting the hall ..." in at.output
        ask = guild_hall("ls", "asks", "--json").json["asks"][0]
        guild_hall(*(["answer", ask["ask"], "yes"] if command == "answer" else ["stop", ask["run"]]))
        at.wait_for("answered elsewhere: yes" if command == "answer" else "no longer open: withdrawn")
        at.wait_for("completed" if command == "answer" else "cancelled")  # nobody typed anything
        code, out = at.wait_exit()
    finally:
        at.close()
    assert (code, out) == ((0, "written\n") if command == "answer" else (1, ""))


def test_end_of_input_leaves_the_question_open(terminal: At, guild: Guild, asking_project: Path) -> None:
    at = terminal("run", "scribe", "go")
    at.wait_for("Allow this call?")
    at.type("\x04")
    code, out = at.wait_exit()
    assert (code, out) == (4, "")
    assert re.search(r"run\): ?\nr-\w{10} paused", at.output)
    ask = re.search(r"guild answer (a-\w{10})", at.output)
    assert ask
    answered = guild("answer", ask[1], "yes")
    assert answered.code == 4
    resume = re.search(r"guild resume (r-\w{10})", answered.err)
    assert resume
    assert guild("resume", resume[1]).out == "written\n"


def test_a_waiting_ask_can_be_answered_at_the_terminal_later(terminal: At, guild: Guild, asking_project: Path) -> None:
    _, ask = start_waiting_run(guild)
    left = terminal("answer", ask)
    left.wait_for("Allow this call?")
    left.type("\x04")
    assert left.wait_exit()[0] == 2
    at = terminal("answer", ask)
    at.wait_for("Allow this call?")
    at.type("yes\n")
    assert at.wait_exit() == (0, "written\n")


def test_a_limit_can_be_raised_at_the_terminal(terminal: At, scribe: Path) -> None:
    at = terminal("run", "scribe", "go", "--budget", "0.006")
    at.wait_for("Allow more?")
    at.type("lots\n")
    at.wait_for("Choose one of: yes, no, an amount such as 2.50.")
    at.wait_for("Allow more?")
    at.type("1.5\n")
    assert at.wait_exit() == (0, "written\n")


# stopping


def read_resume_id(seen: str) -> str:
    found = re.search(r"Continue: guild resume (r-\w{10})", seen)
    assert found, seen
    return found[1]


@pytest.mark.parametrize("place", ["Run r-", "Allow this call?"])
def test_ctrl_c_pauses_and_breaks_nothing(terminal: At, guild: Guild, project: Path, place: str) -> None:
    slow = SCRIPT.replace("- - call", "- - sleep: 1\n        call") if place == "Run r-" else SCRIPT
    make_project(project, worker=WORKER + ASKING, script=slow)
    at = terminal("run", "scribe", "go")
    at.wait_for(place)
    at.type("\x03")
    code, out = at.wait_exit()
    assert (code, out) == (130, "")
    assert "Traceback" not in at.output
    run = read_resume_id(at.output)
    assert guild("show", run, "--json").json["status"] == "paused"
    assert guild("ls").out.count("guild ") == 1  # the run or its ask, not both
    again = terminal("resume", run)
    again.wait_for("Allow this call?")
    again.type("yes\n")
    assert again.wait_exit() == (0, "written\n")
    assert (project / "notes" / "line.md").read_text() == "one line"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_signals_pause_the_run(guild: Guild, project: Path, number: signal.Signals) -> None:
    make_project(project, script=SCRIPT.replace("{say: written,", "{sleep: 60, say: written,"))
    process = guild.start("run", "scribe", "go", "--output", "json")
    assert process.stderr
    for line in process.stderr:
        if line.startswith("← sandbox_write_text"):
            break
    if number == signal.SIGINT:
        interrupt_log_follow(guild)
    os.kill(process.pid, number)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert '"status": "paused"' in out
    assert "Traceback" not in err
    (project / "answers.yaml").write_text(SCRIPT)
    assert guild("resume", read_resume_id(err)).out == "written\n"


def interrupt_log_follow(guild: Guild) -> None:
    process = guild.start("log", guild("ls", "--json").json["working"][0]["run"], "-f")
    assert process.stdout
    process.stdout.readline()
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "guild: interrupted\n")


# a process that was killed


def test_an_interrupted_call_creates_an_ask(terminal: At, guild: Guild, project: Path) -> None:
    worker = WORKER + "tools: [Bash]\n"
    script = """repeat: true
workers:
  scribe:
    - - {call: Bash, with: {command: "echo x >> notes/effects; sleep 60"}}
      - say: went on
"""
    make_project(project, worker=worker, script=script)
    process = guild.start("run", "scribe", "go")
    assert process.stderr
    for line in process.stderr:
        if line.startswith("→ Bash"):
            break
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(5)
    # A process that was just starting may hold the lock.
    wait_until(lambda: guild("ls", "--json").json["needs_you"]["runs"])
    run = guild("ls", "--json").json["needs_you"]["runs"][0]["run"]
    waits = guild("resume", run)
    assert waits.code == 4
    assert "ANSWER (one of done, again, fail). " in waits.err
    at = terminal("answer", guild("ls", "--json").json["needs_you"]["asks"][0]["ask"])
    at.wait_for("Did it take effect?")
    at.type("again\n")
    at.wait_for("→ Bash")
    at.type("\x03")
    at.wait_for("Bash was interrupted.")
    assert at.wait_exit()[0] == 130


# parsing answers


APPROVAL = {"ask": "a-2222222222", "kind": "approval", "choices": ["yes", "no", "always"]}
LIMIT = {"ask": "a-2222222222", "kind": "limit", "choices": ["yes", "no", "amount"]}


@pytest.mark.parametrize(
    ("ask", "typed", "choice"),
    [
        (APPROVAL, "YES ", "yes"),
        (APPROVAL, "a", "always"),
        (LIMIT, "2.50", "2.50"),
        (LIMIT, "$3", "$3"),
        (LIMIT, "n", "no"),
    ],
)
def test_valid_answers_are_accepted(ask: dict[str, object], typed: str, choice: str) -> None:
    assert read_choice(ask, typed) == choice


@pytest.mark.parametrize(
    ("ask", "typed"),
    [
        (APPROVAL, ""),
        (APPROVAL, "yes please"),
        (APPROVAL, "2.50"),
        (LIMIT, "amount"),
        (LIMIT, "-1"),
        (LIMIT, "nan"),
        (LIMIT, "1e400"),
        (LIMIT, "\x1b[2J"),
    ],
)
def test_invalid_answers_are_usage_errors(ask: dict[str, object], typed: str) -> None:
    with pytest.raises(UsageError) as error:
        read_choice(ask, typed)
    assert "\x1b" not in str(error.value)
