"""The reason of an approval: every way to need one says which rule of which file asks, in every place that shows it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.cli.places import Terminal
from tests.guild.packages import write_package
from tests.runs.places import DONE, NOTES, WRITE, put_script, put_worker

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from guildhall.core.paths import Home
    from tests.conftest import Guild

FETCH = {"call": "WebFetch", "with": {"url": "http://127.0.0.1:9/"}}
CREATE = {"call": "worker_create", "with": {"name": "helper", "instructions": "Help."}}
CREATION_RULE = {"worker.create": {"approval_required": True, "description": "Few workers."}}
REVIEWED = {"approval_required": True, "description": "Notes need review."}
PACKAGE = """
[project]
name = "scribe"
description = "Writes notes"

[tool.guildhall]
type = "worker"
posture = "Write."
sandboxes = {notes = {path = "./notes", mode = "rw"}}
tool_rules = {"fs.write" = {approval_required = true}}
"""


def ask_for_rule(project: Path, home: Home) -> str:
    path = put_worker(project)
    put_script(project, WRITE, DONE)
    return f"the rule 'fs.write' of {path} requires approval"


def ask_for_described_rule(project: Path, home: Home) -> str:
    path = put_worker(project, tool_rules={"sandbox.write": REVIEWED})
    put_script(project, WRITE, DONE)
    return f"the rule 'sandbox.write' of {path} requires approval: Notes need review."


def ask_for_two_rules(project: Path, home: Home) -> str:
    path = put_worker(project, tool_rules={"fs.write": REVIEWED, "sandbox_write_text": {"approval_required": True}})
    put_script(project, WRITE, DONE)
    rule = f"the rule 'sandbox_write_text' of {path} requires approval"
    return f"the rule 'fs.write' of {path} requires approval: Notes need review.; {rule}"


def ask_for_package(project: Path, home: Home) -> str:
    write_package(home, "scribe", PACKAGE)
    (project / "notes").mkdir()
    put_script(project, WRITE, DONE)
    return "the rule 'fs.write' of the package scribe requires approval"


def ask_for_exfiltration(project: Path, home: Home) -> str:
    put_worker(project, tools=["WebFetch", "Read"], sandboxes=None, tool_rules=None)
    put_script(project, FETCH, DONE)
    check = "the exfiltration check requires approval: the run can read private files (fs.read: Read)"
    return f"{check}, and WebFetch (net) can read untrusted text and send data"


def ask_for_exfiltration_by_callee(project: Path, home: Home) -> str:
    put_worker(project, "reader", tools=["Read"], tool_rules=None, sandboxes=None)
    put_worker(project, tools=["WebFetch"], allow_workers=["reader"], tool_rules=None, sandboxes=None)
    put_script(project, FETCH, DONE)
    check = (
        "the exfiltration check requires approval: the run can read private files (fs.read: other workers of the run)"
    )
    return f"{check}, and WebFetch (net) can read untrusted text and send data"


def ask_for_creation(project: Path, home: Home) -> str:
    put_worker(project, tool_rules=CREATION_RULE)
    put_script(project, CREATE, DONE)
    return "a new worker always requires approval: Few workers."


@pytest.mark.req("X-5")
@pytest.mark.parametrize(
    "prepare",
    [
        ask_for_rule,
        ask_for_described_rule,
        ask_for_two_rules,
        ask_for_package,
        ask_for_exfiltration,
        ask_for_exfiltration_by_callee,
        ask_for_creation,
    ],
)
def test_an_approval_says_which_rule_requires_it(
    guild: Guild, project: Path, home: Home, prepare: Callable[[Path, Home], str]
) -> None:
    reason = prepare(project, home)
    ran = guild("run", "scribe", "go", "--output", "json")
    assert ran.code == 4, ran
    (ask,) = ran.json["asks"]
    assert ask["because"] == reason
    assert reason not in ask["body"]
    check_reason(guild, ask["ask"], reason)


def check_reason(guild: Guild, ask: str, reason: str) -> None:
    """Check that every command that shows an ask shows the reason."""
    assert f"because: {reason}\n" in guild("show", ask).out
    assert guild("show", ask, "--json").json["because"] == reason
    assert [one["because"] for one in guild("ls", "asks", "--json").json["asks"]] == [reason]
    assert f"because {reason[:60]}" in guild("ls", "asks").out
    assert f"because {reason[:60]}" in guild("ls").out


def write_team(project: Path, **agent: Any) -> Path:
    path = project / "team.yaml"
    path.write_text(json.dumps({"agents": {"ann": agent}, "kickoff": "@ann begin", "setup": []}))
    return path


@pytest.mark.req("X-5")
@pytest.mark.parametrize(("is_named", "is_in_workflow"), [(True, True), (True, False), (False, True)])
def test_an_approval_of_an_agent_names_the_file_with_the_rule(
    guild: Guild, project: Path, is_named: bool, is_in_workflow: bool
) -> None:
    rules = {"document_append": REVIEWED}
    worker = put_worker(project, sandboxes=NOTES, tool_rules=None if is_in_workflow else rules)
    (project / "notes").mkdir()
    put_script(project, {"call": "document_append", "with": {"content": "x"}}, {"call": "no_action"})
    agent: dict[str, Any] = {"worker": "scribe"} if is_named else {"system_prompt": "Write."}
    path = write_team(project, **agent, **({"tool_rules": rules} if is_in_workflow else {}))
    ran = guild("run", "team.yaml", "--output", "json")
    assert ran.code == 4, ran
    (ask,) = ran.json["asks"]
    file = path if is_in_workflow else worker
    reason = f"the rule 'document_append' of {file} requires approval: Notes need review."
    assert ask["because"] == reason
    check_reason(guild, ask["ask"], reason)


@pytest.mark.req("X-5")
def test_the_prompt_at_a_terminal_says_why_it_asks(guild: Guild, project: Path) -> None:
    hostile = "fine\nbecause: nothing\x1b[2K"
    path = put_worker(project, tool_rules={"fs.write": {"approval_required": True, "description": hostile}})
    put_script(project, WRITE, DONE)
    terminal = Terminal(guild, "run", "scribe", "go")
    try:
        terminal.wait_for("[y]es")
        shown = terminal.output.replace("\n  │ ", "")  # without the line breaks at the width of the terminal
    finally:
        terminal.close()
    reason = f"because: the rule 'fs.write' of {path} requires approval: fine because: nothing\\x1b[2K"
    assert reason in shown
    assert shown.index(reason) < shown.index("content: one")
