"""`guild plan`: lists the possible effects of a worker and has none itself."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.members.member_folders import put_member
from tests.runs.places import DONE, NOTES, put_script, put_worker

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.paths import Home
    from tests.conftest import Guild

TOOLBOX = '''
from guildhall import tool

@tool(capabilities={"net"})
def send(to: str) -> str:
    """Send a letter.

    It is gone then.
    """
    return "sent"
'''
LABELS = re.compile(r"^(\w[\w ]*\w) {2,}", re.M)


def plan(guild: Guild, *words: str) -> dict[str, Any]:
    ran = guild("plan", *words, "--json")
    assert ran.code == (1 if ran.json["problems"] else 0), ran
    return ran.json


def test_a_plan_of_a_worker_that_cannot_start_exits_with_an_error(guild: Guild, project: Path) -> None:
    put_worker(project)  # no model is set
    ran = guild("plan", "scribe")
    assert ran.code == 1
    assert "no model" in ran.out


def read_files(*folders: Path) -> dict[str, bytes]:
    """Return all files below the folders, without the database, which opening a home creates."""
    return {
        str(path): path.read_bytes()
        for folder in folders
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith("hall.")
    }


@pytest.mark.req("X-16")
def test_a_plan_lists_all_effects_and_has_none(guild: Guild, project: Path, home: Home) -> None:
    home.path.mkdir(parents=True)
    home.settings.write_text("env: [GREETING]\nbudget: 3.0\n")
    (project / "in").mkdir()
    put_member(home.path, "researcher")
    put_worker(
        project,
        tools=["Read", "Bash"],
        sandboxes={**NOTES, "in": {"path": "./in"}},
        limits={"max_turns": 7, "timeout": "5m"},
        mcp_servers={"docs": {"command": ["uvx", "docs-mcp"], "env": ["DOCS_TOKEN"]}},
        members=["researcher"],
    )
    put_script(project, DONE)
    before = read_files(project)
    ran = guild("plan", "scribe", env={"GREETING": "hello", "SECRET_TOKEN": "s3cr3t-value"})
    assert ran.code == 0
    text = ran.out
    for message in (
        f"model         script:{project}/answers.yaml (set in the settings; priced)",
        "reads         ., ./notes, ./in",
        "writes        ./notes",
        "programs      any",
        "network       used by researcher-dispatch_dispatch, docs_*",
        "A tool of the server docs. Its description is known after the server has started.",
        "GREETING",
        "Run a shell command in the working folder",
        "memory_write",
        "sandbox_write_text",
        "docs: starts uvx docs-mcp with DOCS_TOKEN",
        "home/researcher: dispatches jobs to it; runs ${PYTHON} server.py ${PORT} ",
        "Bash (fs.write), sandbox_write_text (fs.write), ",
        ", docs_* (fs.write)",
        "at most 3.00 USD; 7 turns; 300 seconds; then asks you",
        "exfiltration: reads private files and untrusted text, and can reach the network; asks before each call of ",
        "not trusted   workers/scribe.yaml (mcp_servers.docs)",
        "researcher-dispatch_dispatch",
    ):
        assert message in text
    assert "SECRET" not in text
    assert "hello" not in text, "names of variables, never their values"
    assert read_files(project) == before, "nothing was created, not even the sandbox"
    assert guild("ls", "--all", "--json").json["done"] == []


@pytest.mark.req("X-16")
def test_planned_tools_are_the_tools_of_the_run(guild: Guild, project: Path, home: Home) -> None:
    home.toolboxes.mkdir(parents=True)
    (home.toolboxes / "mail.py").write_text(TOOLBOX)
    put_worker(project, tools=["Glob", "WebFetch"], toolboxes=["mail"], tool_rules=None)
    put_script(project, DONE)
    planned = plan(guild, "scribe")
    run = guild("run", "scribe", "go", "--output", "json").json["run"]
    first = json.loads(guild("log", run, "--json").out.splitlines()[0])["data"]
    assert [tool["name"] for tool in planned["tools"]] == [tool["name"] for tool in first["tools"]]
    shown = {tool["name"]: tool["description"] for tool in first["tools"]}
    assert all(shown[tool["name"]].startswith(tool["description"]) for tool in planned["tools"])
    assert {tool["name"] for tool in planned["tools"] if tool["decision"] == "ask"} == {"send", "WebFetch"}
    assert planned["risk"]["guarded"] == ["WebFetch", "send"]
    assert (planned["network"], planned["runs_programs"]) == (True, False)


def test_the_first_line_of_a_run_matches_the_plan(guild: Guild, project: Path) -> None:
    put_worker(project, tools=["Bash"], tool_rules=None)
    put_script(project, DONE)
    line = guild("run", "scribe", "go", "--max-turns", "3", "--budget", "2").err.splitlines()[0]
    assert "reads ., ./notes; writes ./notes; runs programs; at most 2.00 USD; 3 turns" in line
    text = guild("plan", "scribe", "--max-turns", "3", "--budget", "2").out
    assert "limits        at most 2.00 USD; 3 turns; then asks you" in text


def test_a_plan_accepts_the_options_of_a_run(guild: Guild, project: Path) -> None:
    put_worker(project, model="openai:gpt-5")
    assert plan(guild, "scribe")["model_chosen_by"] == "worker"
    other = plan(guild, "scribe", "--override-model", "anthropic/claude-sonnet-4-5", "--max-tokens", "9", "--strict")
    assert (other["model"], other["model_chosen_by"]) == ("anthropic:claude-sonnet-4-5", "override")
    assert (other["limits"]["max_tokens"], other["mode"]) == (9, "strict")
    assert [tool["name"] for tool in other["tools"] if tool["decision"] == "refuse"] == ["sandbox_write_text"]
    assert other["writes"] == []
    assert "approvals: all denied (--strict)" in guild("plan", "scribe", "--strict").out


@pytest.mark.parametrize(
    ("model", "priced", "message"),
    [
        ("openai:gpt-5", True, "at most 5.00 USD"),
        ("nobody:none", False, "no known price"),
        ("script:none.yaml", None, "price unknown"),
        ("auto", None, "price unknown"),
        ("replay:r-7k2m9x4qpw", True, "priced"),
    ],
)
def test_a_price_is_known_without_a_key(
    guild: Guild, project: Path, model: str, priced: bool | None, message: str
) -> None:
    put_worker(project, model=model)
    assert plan(guild, "scribe")["priced"] is priced
    assert message in guild("plan", "scribe").out


@pytest.mark.req("X-16")
def test_planned_tools_have_the_descriptions_that_the_model_gets(guild: Guild, project: Path, home: Home) -> None:
    home.toolboxes.mkdir(parents=True)
    (home.toolboxes / "mail.py").write_text(TOOLBOX)
    put_worker(project, toolboxes=["mail"], tool_rules=None, allow_workers=["hand"])
    put_worker(project, "hand", description="Lends a hand")
    put_script(project, DONE)
    run = guild("run", "scribe", "go", "--output", "json").json["run"]
    shown = json.loads(guild("log", run, "--json").out.splitlines()[0])["data"]["tools"]
    planned = plan(guild, "scribe")["tools"]
    assert [{key: tool[key] for key in ("name", "description", "input_schema")} for tool in planned] == shown
    send = next(tool for tool in planned if tool["name"] == "send")
    assert list(send["input_schema"]["properties"]) == ["to"]
    calling = next(tool for tool in planned if tool["name"] == "worker_call")
    first, *more = calling["description"].splitlines()
    assert first[:80] in guild("plan", "scribe").out
    assert more
    assert more[-1] not in guild("plan", "scribe").out


def test_a_budget_without_a_known_price_is_a_problem(guild: Guild, project: Path) -> None:
    put_worker(project, model="nobody:none", limits={"max_budget_usd": 1.0})
    first, second = plan(guild, "scribe")["problems"]
    assert first == "model: unknown provider 'nobody'"
    assert "has no known price" in second


def test_a_missing_model_is_a_problem(guild: Guild, project: Path) -> None:
    put_worker(project)
    planned = plan(guild, "scribe")
    assert planned["model"] is None
    assert "no model set for worker" in planned["problems"][0]
    assert "model         none set" in guild("plan", "scribe").out


@pytest.mark.req("X-16")
def test_a_plan_includes_the_workers_that_may_be_called(guild: Guild, project: Path) -> None:
    """The workers call each other in a circle, and one of the named workers does not exist."""
    put_worker(project, "reader", tools=["Read"], allow_workers=["fetcher", "ghost", "old"], tool_rules=None)
    put_worker(project, "fetcher", tools=["WebFetch"], allow_workers=["writer"], sandboxes=None, tool_rules=None)
    put_worker(project, "writer", allow_workers=["reader"])
    put_worker(project, "old", status="retired")
    put_script(project, DONE)
    planned = plan(guild, "reader")
    calls = {call["name"]: call for call in planned["calls"]}
    assert set(calls) == {"fetcher", "ghost", "old", "writer"}
    assert calls["writer"]["through"] == "fetcher"
    assert calls["fetcher"]["plan"]["network"] is True
    assert "unknown worker 'ghost'" in calls["ghost"]["problem"]
    assert "retired" in calls["old"]["problem"]
    assert planned["risk"]["together"] is False
    assert planned["risk_with_calls"]["together"] is True
    assert planned["risk_with_calls"]["guarded"] == ["WebFetch of fetcher"]
    text = guild("plan", "reader").out
    assert re.search(r"fetcher: .*uses the network; asks before WebFetch", text)
    assert "writer (through fetcher): " in text
    assert "with the workers that it may call: reads private files" in text


def test_a_star_allows_every_active_worker(guild: Guild, project: Path) -> None:
    put_worker(project, "boss", allow_workers="*", sandboxes=None, tool_rules=None)
    put_worker(project, "idea", status="draft")
    (project / "workers" / "broken.yaml").write_text("nonsense: 1")
    put_worker(project, "hand", allow_workers="*")
    put_script(project, DONE)
    names = {call["name"] for call in plan(guild, "boss")["calls"]}
    assert "hand" in names
    assert not names & {"boss", "idea", "broken"}


def test_quoted_text_cannot_forge_a_line_of_the_plan(guild: Guild, project: Path, home: Home) -> None:
    home.toolboxes.mkdir(parents=True)
    (home.toolboxes / "mail.py").write_text(TOOLBOX.replace("Send a letter.", "A\\rB\\x1b[2J\\u202e"))
    folder = project / "a\nrisk   none\x1b[1m"
    folder.mkdir()
    put_worker(project, "scribe", toolboxes=["mail"], sandboxes={"a": {"path": "."}}, tool_rules=None)
    put_script(project, DONE)
    (folder / "workers").mkdir()
    (folder / "workers" / "scribe.yaml").write_text((project / "workers" / "scribe.yaml").read_text())
    ran = guild("plan", "scribe", cwd=folder)
    assert "Traceback" not in ran.err
    assert not set(ran.out) & set("\x1b\r\u202e")
    labels = LABELS.findall(ran.out)
    assert labels.count("risk") == 1
    assert len(labels) == len(set(labels))


@pytest.mark.parametrize("name", ["nobody", "", "../x", "x.yaml", "a\nb"])
def test_an_unknown_worker_has_no_plan(guild: Guild, project: Path, name: str) -> None:
    ran = guild("plan", name)
    assert ran.code in (2, 3)
    assert ran.out == ""
    assert "Traceback" not in ran.err


def test_all_missing_parts_are_named(guild: Guild, project: Path) -> None:
    put_worker(
        project,
        tools=["WebSearch", "Read"],
        toolboxes=["mail"],
        sandboxes={"in": {"path": "./nowhere"}},
        output_schema_ref="none.json",
        model="script:none.yaml",
    )
    planned = plan(guild, "scribe")
    problems = "\n".join(planned["problems"])
    for message in (
        "script not found",
        "no search engine",
        "unknown toolbox 'mail'",
        "nowhere does not exist",
        "file not found",
    ):
        assert message in problems
    assert "Read" in [tool["name"] for tool in planned["tools"]]
    assert "and the tools of the toolbox mail, which are unknown" in guild("plan", "scribe").out


def test_a_worker_is_shown_with_its_plan_and_schema(guild: Guild, project: Path) -> None:
    (project / "report.json").write_text('{"type": "object", "properties": {"score": {"type": "integer"}}}')
    put_worker(project, output_schema_ref="report.json")
    put_script(project, DONE)
    out = guild("worker", "show", "scribe").out
    assert guild("plan", "scribe").out in out
    assert "output schema (report.json)" in out
    assert '"score": {' in out
    shown_json = guild("worker", "show", "scribe", "--json").json
    assert shown_json["output_schema"]["properties"] == {"score": {"type": "integer"}}
    assert shown_json["plan"] == plan(guild, "scribe")
    (project / "guildhall.yaml").write_text("nonsense: true\n")
    shown = guild("worker", "show", "scribe")
    assert (shown.code, "Write the requested lines." in shown.out) == (0, True)
    assert "no plan" in shown.err
