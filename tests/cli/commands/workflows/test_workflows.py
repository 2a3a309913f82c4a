"""Workflows on the command line: progress output, and the commands that accept a target."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import CommandResult, Guild

LONG = "a long line " * 40
ESCAPE = "\x1b[2Jgone\u202e"


@pytest.fixture
def review(project: Path) -> Path:
    """Write a workflow of two scripted agents that send messages, write a document and vote."""
    agents = {name: {"system_prompt": f"You are {name}.", "model": "script:script.yaml"} for name in ("ann", "bob")}
    vote = {"type": "decision", "title": "Ship it?", "options": ["yes", "no"]}
    script = {
        "price": {"input": 3.0, "output": 15.0},
        "workers": {
            "ann": [
                [
                    {"call": "channel_send", "with": {"message": f"@bob look at\nthis: {LONG}"}},
                    {"call": "proposal_create", "with": vote},
                    {"call": "proposal_vote", "with": {"proposal": "p-1", "choice": "yes"}},
                    {"say": "done"},
                ],
                [{"call": "channel_send", "with": {"message": "All is well."}}, {"say": "ok"}],
            ],
            "bob": [
                [
                    {"call": "document_write", "with": {"file": "plan/a.md", "content": "# A\n"}},
                    {"call": "channel_send", "with": {"message": f"@nobody {ESCAPE}"}},
                    {"call": "proposal_vote", "with": {"proposal": "p-1", "choice": "yes"}},
                    {"call": "channel_send", "with": {"message": f"@ann read it {ESCAPE}"}},
                    {"say": "done"},
                ]
            ],
        },
        "repeat": True,
    }
    (project / "script.yaml").write_text(json.dumps(script))
    file = project / "review.yaml"
    text = {"agents": agents, "context": {"documentOwner": "none"}, "kickoff": "@ann begin"}
    file.write_text(json.dumps({"name": "review", **text}))
    return file


def assert_ok(ran: CommandResult) -> CommandResult:
    assert ran.code == 0, ran.err
    assert "Traceback" not in ran.err
    return ran


@pytest.mark.req("AW-14")
def test_messages_and_actions_are_printed_in_whole_lines(guild: Guild, review: Path) -> None:
    ran = assert_ok(guild("run", "review.yaml"))
    assert ran.out == "All is well.\n"
    lines = ran.err.splitlines()
    assert "setup" not in lines  # the workflow has no setup
    assert "room: @ann begin" not in lines
    assert "system to ann: @ann begin" in lines
    assert "ann to bob: @bob look at" in lines
    assert f"    this: {LONG.strip()}" in lines  # not cut, and indented
    assert "bob created the document plan/a.md (4 bytes)" in lines
    assert "ann votes on p-1: yes" in lines
    assert "ann: All is well." in lines
    assert any(
        line.startswith("  [bob] ✗ channel_send: message not delivered: no agent named @nobody") for line in lines
    )
    assert not any("→ channel_send" in line for line in lines)  # it is printed as a message
    assert "\x1b[2J" not in ran.err
    assert "\\x1b[2Jgone\\u202e" in ran.err
    assert "$0.0" in lines[-1]


def test_cost_lists_the_workers_that_called_a_model(guild: Guild, review: Path) -> None:
    (review.parent / "guildhall.yaml").write_text("model: script:script.yaml\n")
    assert_ok(guild("run", "review.yaml"))
    assert {line["worker"] for line in assert_ok(guild("cost", "--json")).json["lines"]} == {"ann", "bob"}


@pytest.mark.parametrize("name", ["x" * 300 + ".yaml", "a/" * 2_000 + "b.yaml", "~nobody-at-all/x.yaml"])
def test_an_invalid_file_name_is_reported(guild: Guild, review: Path, name: str) -> None:
    for verb in (("run", name), ("start", name), ("plan", name)):
        ran = guild(*verb)
        assert ran.code in (2, 3), (verb, ran.err)
        assert "Traceback" not in ran.err
        assert "Errno" not in ran.err or "invalid path" in ran.err


@pytest.mark.req("AW-14")
def test_json_output_has_the_messages_and_the_result(guild: Guild, review: Path) -> None:
    result = assert_ok(guild("run", "review.yaml", "--tag", "a", "--output", "json")).json
    assert (result["workflow"], result["tag"], result["status"], result["output"]) == (
        "review",
        "a",
        "completed",
        "All is well.",
    )
    senders = [one["sender"] for one in result["messages"] if one["kind"] == "message"]
    assert (senders[:2], set(senders)) == (["system", "ann"], {"system", "ann", "bob"})
    assert result["messages"][1]["mentions"] == ["bob"]
    assert result["cost_usd"] > 0
    lines = [
        json.loads(line) for line in assert_ok(guild("run", "review.yaml", "--output", "stream-json")).out.splitlines()
    ]
    assert lines[-1]["type"] == "result"
    assert lines[-1]["messages"][-1]["content"] == "All is well."
    types = {line["type"] for line in lines}
    assert {"workflow", "message", "document", "proposal", "vote", "tool_use", "run_ended"} <= types


@pytest.mark.req("AW-2", "AW-16")
def test_every_read_command_accepts_a_target(guild: Guild, review: Path) -> None:
    run = assert_ok(guild("run", "review.yaml", "--tag", "pr-1", "--output", "json")).json["run"]
    listed = assert_ok(guild("ls")).out
    assert "@review:pr-1" in listed
    shown = assert_ok(guild("ls", "@review:pr-1", "--json")).json
    assert (shown["run"], shown["status"], shown["target"]) == (run, "done", "@review:pr-1")
    assert [one["target"] for one in shown["agents"]] == ["ann@review:pr-1", "bob@review:pr-1"]
    runs = {one["agent"]: one["runs"] for one in shown["agents"]}
    assert assert_ok(guild("ls", "bob@review:pr-1", "--json")).json["agent"] == "bob"
    assert "bob@review:pr-1  idle" in assert_ok(guild("ls", "bob@review:pr-1")).out
    assert "until idle" in assert_ok(guild("show", "@review:pr-1")).out
    assert assert_ok(guild("show", "ann@review:pr-1", "--json")).json["unread"] == 0
    assert assert_ok(guild("show", run)).out.startswith("run ")
    log = assert_ok(guild("log", "@review:pr-1")).out
    assert log.index("system to ann: @ann begin") < log.index("ann to bob:") < log.index("ann: All is well.")
    assert f"[bob {shown['agents'][1]['run'] or ''}" in log
    only = assert_ok(guild("log", "bob@review:pr-1", "--json")).out.splitlines()
    assert {json.loads(line).get("sender", "bob") for line in only} == {"ann", "bob"}
    cost = assert_ok(guild("cost", "@review:pr-1", "--json")).json
    assert {line["worker"]: line["runs"] for line in cost["lines"]} == runs
    assert [line["worker"] for line in assert_ok(guild("cost", "bob@review:pr-1", "--json")).json["lines"]] == ["bob"]
    voted = assert_ok(guild("proposals", "@review:pr-1", "--json")).json["proposals"]
    assert (voted[0]["status"], voted[0]["result"], len(voted[0]["votes"])) == ("resolved", "yes", 2)
    assert "resolved: yes" in assert_ok(guild("proposals", "@review:pr-1")).out
    ran = assert_ok(guild("wait", "@review:pr-1"))
    assert ran.out == "All is well.\n"
    assert assert_ok(guild("wait", run, "--json")).json["tag"] == "pr-1"


@pytest.mark.req("AW-8")
def test_documents_are_read_and_written_by_hand(guild: Guild, review: Path, project: Path) -> None:
    assert_ok(guild("run", "review.yaml"))
    assert assert_ok(guild("doc", "ls", "@review", "--json")).json == {
        "documents": [
            {"path": "decisions.md", "size": _size(project, "decisions.md")},
            {"path": "plan/a.md", "size": 4},
        ]
    }
    assert assert_ok(guild("doc", "read", "@review", "plan/a.md")).out == "# A\n"
    digest = assert_ok(guild("doc", "read", "@review", "plan/a.md", "--json")).json["digest"]
    assert (
        assert_ok(guild("doc", "write", "--append", "@review", "plan/a.md", input="more")).out == "plan/a.md: 8 bytes\n"
    )
    stale = guild("doc", "write", "@review", "plan/a.md", "--base", digest, "--text", "x")
    assert (stale.code, "has changed since" in stale.err) == (1, True)
    assert_ok(guild("doc", "write", "@review", "plan/a.md", "--text", "new"))
    assert_ok(guild("doc", "write", "@review", "--text", "notes"))
    folder = project / ".workflow/review/main/documents"
    assert ((folder / "plan/a.md").read_text(), (folder / "notes.md").read_text()) == ("new", "notes")
    for path in ("../x", "/etc/passwd", "a\\b", ".hidden", "x" * 600, "a//b"):
        for verb, more in (("read", []), ("write", ["--text", "x"]), ("append", ["--text", "x"])):
            ran = guild("doc", verb, "@review", path, *more)
            assert ran.code == 2, (path, verb, ran)
    missing = guild("doc", "read", "@review", "plan/b.md")
    assert (missing.code, "plan/a.md" in missing.err) == (3, True)
    assert guild("doc", "write", "@review", "a.md", input="a\udcff").code == 2


def _size(project: Path, name: str) -> int:
    return (project / ".workflow/review/main/documents" / name).stat().st_size


ODD = ["", "@", "a@", "@a:", "a:b", "a@b@c", "@a:b:c", "@" + "x" * 300, "a b", "\x1b[2J", "@../x", "..", "@global:x"]


@pytest.mark.parametrize(
    "words",
    [
        *(["send", odd, "hello"] for odd in ODD),
        *(["schedule", odd, "set", "5m"] for odd in ODD[:4]),
        *(
            [verb, odd]
            for verb in ("stop", "ls", "show", "log", "wait", "cost", "proposals")
            for odd in ("@", "@nope", "a@b@c")
        ),
        *(["doc", verb, odd] for verb in ("ls", "read") for odd in ("@", "@nope", "x")),
        ["start", "nope.yaml"],
        ["start", "a@nope"],
        ["start", "nope", "--tag", "x"],
        ["start", "nope", "--background"],
        ["stop"],
        ["stop", "x", "--all"],
        ["send", "@nope"],
        ["schedule", "@nope", "set"],
        ["schedule", "@nope", "show", "5m"],
        ["schedule", "@nope", "never"],
        ["wait", "r-7k2m9x4qpw", "--timeout", "soon"],
    ],
)
def test_invalid_arguments_are_reported_and_have_no_effect(guild: Guild, project: Path, words: list[str]) -> None:
    ran = guild(*words)
    assert ran.code in (2, 3), ran
    assert ran.out == "" or ran.json["error"]["code"] == "usage"
    assert ran.err.startswith("guild: ")
    assert "Traceback" not in ran.err
    assert "\x1b" not in ran.err


def test_a_completed_workflow_accepts_no_message(guild: Guild, review: Path) -> None:
    assert_ok(guild("run", "review.yaml"))
    ran = guild("send", "ann@review", "hello", "--json")
    assert ran.code == 1
    assert "guild run" in ran.json["error"]["hint"]
    assert "review.yaml" in ran.json["error"]["hint"]
    assert guild("stop", "@review").code == 1
    assert guild("stop", "--all").err.startswith("Nothing is running")


def test_background_is_refused_without_a_hall(guild: Guild, review: Path) -> None:
    ran = guild("start", "review.yaml", "--background")
    assert ran.code == 2
    assert "GUILDHALL_EMBEDDED" in ran.err


def test_an_invalid_message_from_standard_input_is_rejected(guild: Guild, review: Path) -> None:
    ran: Any = guild("send", "ann@review", "-", input="x" * 1_000_001)
    assert ran.code == 2
    assert "larger than" in ran.err
    assert guild("send", "ann@review", input="\0").code == 2


def test_a_missing_workflow_file_is_reported_with_a_suggestion(guild: Guild, project: Path) -> None:
    (project / "review.yaml").write_text("agents: {a: {system_prompt: x}}")
    ran = guild("run", "reveiw.yaml")
    assert ran.code == 3
    assert "file not found: reveiw.yaml" in ran.err
    assert "review.yaml" in ran.err.splitlines()[1]


def test_a_missing_script_or_prompt_is_reported_with_its_path(guild: Guild, review: Path) -> None:
    ran = guild("run", "review.yaml", "--override-model", "script:nix.yaml")
    assert (ran.code, "Create it, or correct the path." in ran.err) == (2, True), ran.err
    for agent in ("ann", "bob"):
        assert f"{review.parent / 'nix.yaml'}: agent {agent}: file not found" in ran.err
    review.write_text(review.read_text().replace("script:script.yaml", "script:nix.yaml"))
    ran = guild("run", "review.yaml")
    assert f"model: script not found: {review.parent / 'nix.yaml'}" in ran.err
    assert "correct the path. It is relative to the folder of the workflow file." in ran.err
    review.write_text(review.read_text().replace("You are ann.", "ann.md"))
    ran = guild("run", "review.yaml")
    assert "correct the path, which starts at the folder of this file." in ran.err


@pytest.mark.parametrize("verb", ["run", "plan"])
def test_a_kickoff_with_an_unknown_mention_is_refused_before_the_start(guild: Guild, review: Path, verb: str) -> None:
    review.write_text(review.read_text().replace("@ann begin", "@anm begin"))
    ran = guild(verb, "review.yaml")
    assert (ran.code, ran.out) == (2, "")
    assert "review.yaml:1: kickoff: unknown agent @anm" in ran.err
    assert "Did you mean 'ann'?" in ran.err
    assert guild("ls", "--all", "--json").json["done"] == []


def test_a_kickoff_with_an_unknown_mention_after_substitution_is_reported(guild: Guild, review: Path) -> None:
    file = json.loads(review.read_text())
    review.write_text(json.dumps({**file, "kickoff": "@anm${{ params.x }} begin", "params": {"x": ""}}))
    ran = guild("run", "review.yaml")
    assert ran.code != 0
    assert f"Correct the kickoff, then start again: guild run {review}" in ran.err
    assert "guild resume" not in ran.err


@pytest.mark.parametrize(
    ("changed", "why"),
    [({"kickoff": None}, "the file has no kickoff"), ({"kickoff": "begin, `@ann`"}, "the kickoff mentions no agent")],
)
def test_a_workflow_in_which_no_agent_starts_prints_a_warning(
    guild: Guild, review: Path, changed: dict[str, Any], why: str
) -> None:
    file = json.loads(review.read_text())
    review.write_text(json.dumps({**file, **changed}))
    warning = f"no agent starts: {why}, and no agent has a wakeup"
    assert f"room: {warning}\n" in assert_ok(guild("run", "review.yaml")).err
    assert f"warning       {warning}\n" in assert_ok(guild("plan", "review.yaml")).out
    file["agents"]["ann"]["wakeup"] = "1h"
    review.write_text(json.dumps({**file, **changed}))
    assert guild("plan", "review.yaml", "--json").json["warnings"] == []
