"""Packages at work, through the real command: a worker package with a toolbox package, and how its runs begin."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.testing.scripted_server import ScriptedServer
from tests.guild.packages import MAIL, TOOLS, WRITER, put_mail, put_package
from tests.projects.conftest import repository

if TYPE_CHECKING:
    from guildhall.core.paths import Home
    from tests.conftest import Guild, Ran

BASE = ["record_decision", "memory_read", "memory_write", "memory_list"]
WEIGHS = "workers: {writer: [[{call: weigh, with: {words: 500}}, {expect: said in a child, say: It costs 85 cents.}]]}"
ACTIVE = WRITER.replace("toolboxes = [", 'activate = "begin:activate"\ntoolboxes = [')
ACTIVATE = """
def activate(context):
    assert context["worker"]["name"] == "writer" and context["posture"] == "You write letters."
    assert context["limits"]["max_turns"] == 20
    tools = [tool["name"] for tool in context["tools"]]
    assert tools[-1] == "weigh" and "words" in context["tools"][-1]["input_schema"]["properties"]
    prompt = f"You write for {context['context']} {context['project']}: {context['input']}"
    return {"system_prompt": prompt, "tools": ["weigh", "memory_read"], "limits": {"max_turns": 7, "timeout": 60}}
"""


def run(guild: Guild, script: str, *more: str, worker: str = "writer") -> Ran:
    Path("answers.yaml").write_text(script)
    return guild("run", worker, "Write to Ada", "--model", "script:answers.yaml", "--output", "json", *more)


def begun(guild: Guild, ran: Ran) -> dict[str, Any]:
    """Return the first journal entry of a run."""
    assert ran.code == 0, ran.err
    return json.loads(guild("log", ran.json["run"], "--json").out.splitlines()[0])["data"]


def names(frozen: dict[str, Any]) -> list[str]:
    return [tool["name"] for tool in frozen["tools"]]


@pytest.mark.req("WKR-6a", "WKR-1", "WKR-5")
def test_a_worker_package_uses_a_toolbox_package(guild: Guild, project: Path, home: Home) -> None:
    put_package(home, "writer", WRITER)
    put_mail(home)
    ran = run(guild, WEIGHS)
    frozen = begun(guild, ran)
    assert ran.json["output"] == "It costs 85 cents."
    assert names(frozen) == [*BASE, "weigh"]  # what the model is shown, and nothing more
    assert frozen["system_prompt"] == "You write letters."
    assert frozen["bounds"]["max_turns"] == 20
    assert "activation" not in frozen
    assert guild("replay", ran.json["run"]).code == 0


@pytest.mark.req("WKR-4a", "WKR-3")
def test_its_function_says_how_a_run_begins_and_once_only(guild: Guild, project: Path, home: Home) -> None:
    folder = put_package(home, "writer", ACTIVE, {"begin.py": ACTIVATE})
    put_mail(home)
    assert guild("memory", "write", "style", "Short sentences.", "--scope", "global").code == 0
    ran = run(guild, WEIGHS)
    frozen = begun(guild, ran)
    assert frozen["system_prompt"].startswith("You write for run None: Write to Ada\n")
    assert frozen["system_prompt"].endswith(frozen["memory"])  # the hall's own, as the last block
    assert "Short sentences." in frozen["memory"]
    assert names(frozen) == ["memory_read", "weigh"]
    assert (frozen["bounds"]["max_turns"], frozen["bounds"]["timeout"]) == (7, 60)
    assert frozen["activation"]["tools"] == ["weigh", "memory_read"]
    assert begun(guild, run(guild, WEIGHS, "--max-turns", "3"))["bounds"]["max_turns"] == 3
    (folder / "begin.py").write_text("def activate(context):\n    raise ValueError('again?')\n")
    again = guild("replay", ran.json["run"])
    assert again.code == 0, again.err
    wrong = run(guild, WEIGHS)
    assert (wrong.code, wrong.json["run"]) == (1, None)
    assert "activate: begin:activate failed: ValueError: again?" in wrong.err
    assert f"{folder}/begin.py:2" in wrong.err


def test_a_run_that_goes_on_is_as_it_began(guild: Guild, project: Path, home: Home) -> None:
    asked = ACTIVE + "\n[tool.guildhall.tool_rules.weigh]\napproval_required = true\n"
    folder = put_package(home, "writer", asked, {"begin.py": ACTIVATE})
    put_mail(home)
    (project / "answers.yaml").write_text(WEIGHS)
    ran = guild("run", "writer", "Write to Ada", "--model", "script:answers.yaml", "--output", "json")
    assert ran.code == 4, ran.err
    (folder / "begin.py").write_text("raise SystemExit\n")
    answered = guild("approve", ran.json["asks"][0]["ask"])
    assert "It costs 85 cents." in answered.out, answered.err


@pytest.mark.req("WKR-13")
def test_without_a_toolbox_that_it_names_nothing_runs(guild: Guild, project: Path, home: Home) -> None:
    put_package(home, "writer", WRITER)
    ran = run(guild, WEIGHS)
    assert (ran.code, ran.json["run"]) == (1, None)
    assert "toolboxes: unknown toolbox 'mail'" in ran.err
    put_package(home, "mails", MAIL.replace('"mail"', '"mails"'), {"post/tools.py": TOOLS})
    assert "Did you mean 'mails'?" in run(guild, WEIGHS).err
    put_package(home, "mail", MAIL)
    assert "mail/pyproject.toml: tool.guildhall.export: unknown module post.tools" in run(guild, WEIGHS).err
    put_mail(home)
    (home.toolboxes).mkdir()
    (home.toolboxes / "mail.py").write_text(TOOLS)
    assert "'mail' is ambiguous" in run(guild, WEIGHS).err
    assert guild("ls", "--all", "--json").json["done"] == []


@pytest.mark.req("WKR-7")
def test_a_package_is_worker_and_toolbox_at_once(guild: Guild, project: Path, home: Home) -> None:
    both = MAIL.replace('"toolbox"', '["worker", "toolbox"]\nposture = "You carry letters."\ntoolboxes = ["mail"]')
    put_package(home, "mail", both, {"post/tools.py": TOOLS, "post/prices.py": "def price(words): return 85\n"})
    put_package(home, "writer", WRITER)
    assert run(guild, WEIGHS).json["output"] == "It costs 85 cents."
    assert run(guild, WEIGHS.replace("writer", "mail"), worker="package/mail").json["output"] == "It costs 85 cents."


@pytest.mark.req("WKR-16", "WKR-12")
def test_a_real_client_shows_the_model_those_tools_and_no_other(guild: Guild, project: Path, home: Home) -> None:
    put_package(home, "writer", ACTIVE.replace('["mail"]', '["mail"]\ntools = ["Read"]'), {"begin.py": READS})
    put_mail(home)
    (project / "answers.yaml").write_text(WEIGHS)
    with ScriptedServer(project / "answers.yaml") as server:
        provider = {"ANTHROPIC_API_KEY": "script-writer", "ANTHROPIC_BASE_URL": server.anthropic_url}
        ran = guild("run", "writer", "Go", "--model", "anthropic:claude-sonnet-4-5", env=provider)
        shown = [[tool["name"] for tool in exchange.body["tools"]] for exchange in server.requests]
    assert ran.out == "It costs 85 cents.\n", ran.err
    assert shown == [["weigh", "Read"]] * 2


READS = """
def activate(context):
    assert [tool["name"] for tool in context["tools"]][-2:] == ["weigh", "Read"]
    return {"tools": ["Read", "weigh"]}
"""

BOX = """
from guildhall import Toolbox, tool

SAID = []


@tool
def {name}_note(text: str) -> str:
    "Notes something."
    SAID.append(text)
    return ", ".join(SAID)


@tool
def {name}_hidden() -> str:
    "Not exported."


box = Toolbox("{name}", {name}_note)
"""


def test_two_packages_may_have_modules_of_one_name(guild: Guild, project: Path, home: Home) -> None:
    for name in ("red", "blue"):
        text = '[tool.guildhall]\ntype = "toolbox"\nexport = "tools:box"\n'
        put_package(home, name, text, {"tools.py": BOX.format(name=name)})
    put_package(home, "writer", WRITER.replace('["mail"]', '["red", "blue"]'))
    notes = [
        "{call: red_note, with: {text: a}}",
        "{call: blue_note, with: {text: b}}",
        "{call: red_note, with: {text: c}}",
    ]
    ends = "{expect: '^a, c$', say: done}"
    ran = run(guild, f"workers: {{writer: [[{', '.join([*notes, ends])}]]}}")
    assert names(begun(guild, ran)) == [*BASE, "red_note", "blue_note"]
    assert ran.json["output"] == "done"


def test_a_job_is_begun_as_one_and_keeps_its_own_tools(guild: Guild, project: Path, home: Home) -> None:
    assert guild("package", "new", "writer", "--from", "writer").code == 0
    activation = home.packages / "writer" / "activation.py"
    activation.write_text(activation.read_text().replace("return {", 'return {"tools": [], '))
    (project / "guildhall.yaml").write_text("model: script:answers.yaml\n")
    (project / "answers.yaml").write_text("workers: {writer: [[{call: submit_result, with: {output: ok}}, {say: ok}]]}")
    job = guild("dispatch", "writer", "Write", "--wait", "--json")
    assert job.code == 0, job.err + job.out
    frozen = json.loads(guild("log", job.json["jobId"], "--json").out.splitlines()[0])["data"]
    assert "Write the text as an artifact" in frozen["system_prompt"]
    assert "submit_result" in names(frozen)
    assert "memory_read" not in names(frozen)


def test_a_package_is_called_by_others_and_tested_without_a_model(guild: Guild, project: Path, home: Home) -> None:
    put_package(home, "writer", ACTIVE, {"begin.py": ACTIVATE})
    put_mail(home)
    (project / "workers").mkdir()
    (project / "workers" / "boss.yaml").write_text("instructions: x\nallow_workers: [package/writer]\n")
    calls = "[[{call: worker_call, with: {worker_name: package/writer, input_data: Go}}, {say: It is done.}]]"
    ran = run(guild, WEIGHS.replace("{writer", f"{{boss: {calls}, writer"), worker="boss")
    assert ran.json["output"] == "It is done.", ran.err
    (project / "tests").mkdir()
    assert guild("script", ran.json["run"], "--out", "tests/boss.yaml").code == 0
    tested = guild("test", "tests/boss.yaml")
    assert tested.code == 0, tested.out + tested.err


def test_an_output_schema_of_the_package(guild: Guild, project: Path, home: Home) -> None:
    model = "from dataclasses import dataclass\n\n@dataclass\nclass Letter:\n    text: str\n"
    text = WRITER.replace('["mail"]', "[]").replace("limits", 'output_schema_ref = "letters:Letter"\nlimits')
    put_package(home, "writer", text, {"src/letters.py": model})
    ran = run(guild, "workers: {writer: [[{output: {text: Dear Ada}}]]}")
    assert ran.json["output"] == {"text": "Dear Ada"}, ran.err


def test_in_a_meeting_it_is_told_so_with_the_project(guild: Guild, project: Path, home: Home) -> None:
    repository(project).commit({"a.md": "one"})
    assert guild("project", "add", ".", "--name", "letters").code == 0
    assert guild("package", "new", "writer", "--from", "writer").code == 0
    (project / "guildhall.yaml").write_text("model: script:answers.yaml\n")
    (project / "answers.yaml").write_text("workers: {writer: [[{say: What is it about?}]]}")
    met = guild("meet", "writer", "A letter")
    assert "What is it about?" in met.out, met.err
    refused = guild("package", "rm", "writer")
    (meeting,) = re.findall(r"\bt-\w{10}", refused.err)
    frozen = json.loads(guild("log", meeting, "--json").out.splitlines()[0])["data"]
    assert "You are talking with the user." in frozen["system_prompt"]
    assert "You work for the project letters." in frozen["system_prompt"]
    assert names(frozen)[: len(BASE)] == BASE
