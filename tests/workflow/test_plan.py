"""`guild plan` and `guild trust` of workflows: the plan shows all effects, and no untrusted command runs."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from guildhall.core.config import Settings
from guildhall.core.errors import NotTrusted
from guildhall.core.request_frame import Frame
from guildhall.runs.model import RunRequest
from guildhall.workers.code_trust import Trust
from guildhall.workers.model import Pin
from guildhall.workflow.loader import check_trust, setup_code
from guildhall.workflow.plan import plan_summary
from guildhall.workflow.target import find_workflow_files, is_workflow_file

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.paths import Home
    from tests.conftest import Guild
    from tests.workflow.conftest import LoadWorkflow, Write

TEAM = """\
name: code-review
agents:
  reviewer: {model: "openai:gpt-5", system_prompt: Review., tools: [Read], wakeup: 5m}
  coder: {worker: coder, max_turns: 7}
context: {documentOwner: reviewer}
params: {pr: {description: its number}, topic: parsers}
env: [TEAM]
setup:
  - shell: |
      touch it-ran
      gh pr diff "${{ params.pr }}"
    as: diff
    timeout: 1m
kickoff: "@reviewer ${{ diff }}"
budget: 2
"""


KEYS = {"OPENAI_API_KEY": "sk-x", "ANTHROPIC_API_KEY": "sk-ant-x"}


@pytest.fixture
def team(write: Write) -> Path:
    write("workers/coder.yaml", "{instructions: Code., model: 'openai:gpt-5', tools: [WebFetch]}")
    return write("review.yaml", TEAM)


@pytest.mark.req("X-16")
def test_the_plan_shows_setup_room_limits_and_agents(guild: Guild, team: Path, home: Home):
    home.path.mkdir(parents=True)
    home.settings.write_text("env: [TEAM, OTHER]\n")
    ran = guild("plan", "review.yaml", "--param", "pr=12", "--tag", "t1", env={"TEAM": "us", "OTHER": "x", **KEYS})
    assert ran.code == 0, ran.err
    for line in (
        f"workflow      code-review:t1 ({team})",
        "params        pr = 12",
        "              topic = parsers",
        "setup         1. timeout 1m, output diff, not sandboxed:",
        "                 $ touch it-ran",
        '                 $ gh pr diff "${GUILD_params_pr}"',
        f"runs in       {team.parent}",
        "room          sqlite; only reviewer writes documents",
        f"documents     {team.parent}/.workflow/code-review/t1/documents",
        "kickoff       @reviewer ${{ diff }}",
        "limits        at most 2.00 USD for the workflow; then asks you",
        "agent reviewer",
        "  wakes         every 5m",
        "  model         openai:gpt-5 (set in the worker file; priced)",
        "agent coder",
        "  approvals     before each call of WebFetch",
        "  limits        shares the workflow's budget; 7 turns",
    ):
        assert line in ran.out.splitlines(), line
    variables = next(line for line in ran.out.splitlines() if line.startswith("variables"))
    assert "TEAM" in variables
    assert "OTHER" not in variables
    assert "not trusted   review.yaml" in ran.out
    assert "cannot start" not in ran.out
    assert "warning" not in ran.out
    assert not (team.parent / "it-ran").exists()
    assert not (team.parent / ".workflow").exists()


MAX_PLAN_LINES = 60


@pytest.mark.req("X-16")
def test_the_room_tools_are_one_line_of_each_agent(guild: Guild, write: Write):
    agents = "".join(f"  {name}: {{model: 'openai:gpt-5', system_prompt: Work., tools: [Read]}}\n" for name in "abc")
    write("three.yaml", f"agents:\n{agents}setup: [{{shell: touch it-ran}}]\nkickoff: '@a begin'\n")
    for command in ("plan", "trust"):
        lines = guild(command, "three.yaml", env=KEYS).out.splitlines()
        assert len(lines) <= MAX_PLAN_LINES
        room = [line.strip() for line in lines if "room tools" in line]
        assert len(room) == 3
        assert re.fullmatch(r"room tools \(\d\d, 1?\d shown at first\)", room[0])
        assert "channel_send" not in "\n".join(lines)
        assert next(i for i, line in enumerate(lines) if "$ touch it-ran" in line) < 6
    agent = guild("plan", "three.yaml", "--json", env=KEYS).json["agents"][0]
    names = {tool["name"] for tool in agent["tools"]}
    assert {"Read", "channel_send", "proposal_create"} <= names
    assert "proposal_create" in agent["deferred_tools"]
    assert "channel_send" not in agent["deferred_tools"]
    write("asks.yaml", "agents: {a: {system_prompt: x, tool_rules: {channel_send: {approval_required: true}}}}")
    assert "before each call of channel_send" in guild("plan", "asks.yaml", env=KEYS).out


@pytest.mark.req("X-16")
def test_the_plan_as_json_names_missing_params_and_problems(guild: Guild, team: Path):
    plan = guild("plan", "review.yaml", "--json", env=KEYS).json
    assert plan["params"] == {"pr": None, "topic": "parsers"}
    assert plan["worst_case_usd"] == 2
    assert plan["setup"]["commands"][0]["keeps"] == "diff"
    assert plan["setup"]["code"]["trusted"] is False
    assert [agent["agent"] for agent in plan["agents"]] == ["reviewer", "coder"]
    assert plan["problems"] == ["env[0]: your settings do not allow the variable TEAM"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["review.yaml", "--param", "pr"], 2, "it has no value or no name"),
        (["review.yaml", "--param", "pr=1", "--param", "pr=2"], 2, "duplicate --param"),
        (["coder", "--param", "pr=1"], 2, "can only be used with a workflow file"),
        (["coder", "--tag", "x"], 2, "can only be used with a workflow file"),
        (["reviev.yaml"], 3, "file not found"),
        (["broken.yaml"], 2, "broken.yaml:1: agents"),
    ],
)
def test_wrong_arguments_are_reported(guild: Guild, team: Path, arguments: list[str], code: int, message: str):
    (team.parent / "broken.yaml").write_text("agents: 5\n")
    ran = guild("plan", *arguments)
    assert (ran.code, message in ran.err) == (code, True), ran.err


def test_a_file_cannot_forge_a_line_of_the_plan(guild: Guild, write: Write):
    name = "w\x1b[31m.yaml"
    write(name, 'agents: {a: {system_prompt: x, model: "openai:gpt-5"}}\nname: w\nkickoff: "hi\\rsetup none\\x1b[2J"\n')
    ran = guild("plan", name)
    assert "\x1b" not in ran.out
    assert "\r" not in ran.out


@pytest.mark.req("X-18")
def test_a_changed_setup_must_be_trusted_again(guild: Guild, team: Path):
    looked = guild("trust", "review.yaml")
    assert looked.code == 4
    assert '$ gh pr diff "${GUILD_params_pr}"' in looked.out
    for agent in guild("plan", "review.yaml", "--json").json["agents"]:
        assert {"channel_send"} <= {tool["name"] for tool in agent["tools"]}
    assert looked.out.count("limits        shares the workflow's budget") == 2
    assert looked.out.count("room tools") == 2
    assert guild("trust", "review.yaml", "--yes").code == 0
    assert guild("trust", "review.yaml", "--json").json["trusted"] is True
    assert guild("plan", "review.yaml", "--json").json["not_trusted"] == []
    team.write_text(TEAM.replace("touch", "rm"))
    changed = guild("plan", "review.yaml", "--json").json["not_trusted"]
    assert [one["standing"] for one in changed] == ["changed"]
    assert not (team.parent / "it-ran").exists()


@pytest.mark.req("X-18")
def test_the_trust_of_a_folder_includes_its_workflows(guild: Guild, team: Path, write: Write):
    write("workflows/other.yml", "agents: {a: {system_prompt: x}}\nsetup: [{shell: make}]")
    write("harmless.yaml", "agents: {a: {system_prompt: x}}")
    write("broken.yaml", "agents: {a: {}}")
    looked = guild("trust", "--json").json
    assert [code["name"] for code in looked["code"]] == ["review.yaml", "workflows/other.yml"]
    assert looked["code"][1]["commands"] == ["make"]
    assert len(looked["problems"]) == 1
    guild("trust", "--yes")
    assert guild("trust", "--json").json["trusted"] is True


@pytest.mark.req("X-18")
def test_the_plan_summary_names_external_runtimes(load_workflow: LoadWorkflow, project: Path):
    workflow = load_workflow("agents: {ann: {system_prompt: x}, bob: {system_prompt: x, backend: claude}}")
    frame = Frame(cwd=project, root=project)
    message = plan_summary(
        workflow, RunRequest(worker="w", input=""), frame, Settings(model="anthropic:claude-sonnet-5")
    )
    assert message.startswith("agents ann, bob (Claude Code); models anthropic:claude-sonnet-5; ")


def test_an_untrusted_setup_is_refused_with_its_commands(load_workflow: LoadWorkflow, home: Home):
    workflow = load_workflow(
        "agents: {a: {system_prompt: x}}\nsetup: [{shell: make it}, {shell: 'echo ${{ workflow.tag }}'}]"
    )
    with pytest.raises(NotTrusted) as caught:
        check_trust(workflow, Trust({}), home)
    assert "make it" in caught.value.message
    assert "guild trust" in (caught.value.hint or "")
    code = setup_code(workflow, home)
    assert code is not None
    pin = Pin(path=workflow.path, digest=code.files[0].digest, trusted_at="then")
    check_trust(workflow, Trust({workflow.path: pin}), home)
    check_trust(load_workflow("agents: {a: {system_prompt: x}}", "harmless.yaml"), Trust({}), home)


def test_workflow_files_are_found_by_their_agents(write: Write, project: Path):
    yes = [
        write("a.yaml", "name: x\nagents:\n  a: {}\n"),
        write("b.json", json.dumps({"agents": {}})),
        write("c.yml", "{agents: {a: 1}}"),
        write("d.yaml", "agents: [broken"),
    ]
    write("e.yaml", "instructions: |\n  agents: none\n")
    write("f.yaml", "{agent")
    write("g.txt", "agents: {}")
    write("h.json", '{"name": "agents"}')
    (project / "i.yaml").mkdir()
    assert list(find_workflow_files(project)) == yes
    assert not is_workflow_file(project / "nowhere.yaml")
    assert not is_workflow_file(project / "a\0b.yaml")
