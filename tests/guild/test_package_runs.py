"""Packages in runs: a worker package with a toolbox package, and activation functions."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.testing.scripted_server import ScriptedServer
from tests.guild.packages import MAIL, TOOLS, WRITER, write_mail_package, write_package
from tests.projects.conftest import repository

if TYPE_CHECKING:
    from guildhall.core.paths import Home
    from tests.conftest import CommandResult, Guild

BASE = ["memory_write"]
WEIGHS = "workers: {writer: [[{call: weigh, with: {words: 500}}, {expect: said in a child, say: It costs 85 cents.}]]}"
ACTIVE = WRITER.replace("toolboxes = [", 'activate = "begin:activate"\ntoolboxes = [')
ACTIVATE = """
def activate(context):
    assert context["worker"]["name"] == "writer" and context["posture"] == "You write letters."
    assert context["limits"]["max_turns"] == 20
    tools = [tool["name"] for tool in context["tools"]]
    assert tools[0] == "weigh" and "words" in context["tools"][0]["input_schema"]["properties"]
    prompt = f"You write for {context['context']} {context['project']}: {context['input']}"
    return {"system_prompt": prompt, "tools": ["weigh", "memory_write"], "limits": {"max_turns": 7, "timeout": 60}}
"""


def run(guild: Guild, script: str, *more: str, worker: str = "writer") -> CommandResult:
    Path("answers.yaml").write_text(script)
    return guild("run", worker, "Write to Ada", "--model", "script:answers.yaml", "--output", "json", *more)


def read_assembly(guild: Guild, ran: CommandResult) -> dict[str, Any]:
    """Return the first journal entry of a completed run."""
    assert ran.code == 0, ran.err
    return json.loads(guild("log", ran.json["run"], "--json").out.splitlines()[0])["data"]


def tool_names(assembled: dict[str, Any]) -> list[str]:
    return [tool["name"] for tool in assembled["tools"]]


@pytest.mark.req("WKR-6a", "WKR-1", "WKR-5")
def test_a_worker_package_uses_a_toolbox_package(guild: Guild, project: Path, home: Home) -> None:
    write_package(home, "writer", WRITER)
    write_mail_package(home)
    ran = run(guild, WEIGHS)
    assembled = read_assembly(guild, ran)
    assert ran.json["output"] == "It costs 85 cents."
    assert tool_names(assembled) == ["weigh", *BASE]  # the model gets exactly these
    assert assembled["system_prompt"] == "You write letters."
    assert assembled["bounds"]["max_turns"] == 20
    assert "activation" not in assembled
    assert guild("replay", ran.json["run"]).code == 0


@pytest.mark.req("WKR-4a", "WKR-3")
def test_an_activation_function_sets_up_a_run_and_is_called_once(guild: Guild, project: Path, home: Home) -> None:
    folder = write_package(home, "writer", ACTIVE, {"begin.py": ACTIVATE})
    write_mail_package(home)
    assert guild("memory", "write", "style", "Short sentences.", "--scope", "global").code == 0
    ran = run(guild, WEIGHS)
    assembled = read_assembly(guild, ran)
    assert assembled["system_prompt"].startswith("You write for run None: Write to Ada\n")
    assert assembled["system_prompt"].endswith(assembled["memory"])  # the memory of the hall is the last block
    assert "Short sentences." in assembled["memory"]
    assert tool_names(assembled) == ["weigh", "memory_write"]
    assert (assembled["bounds"]["max_turns"], assembled["bounds"]["timeout"]) == (7, 60)
    assert assembled["activation"]["tools"] == ["weigh", "memory_write"]
    assert read_assembly(guild, run(guild, WEIGHS, "--max-turns", "3"))["bounds"]["max_turns"] == 3
    (folder / "begin.py").write_text("def activate(context):\n    raise ValueError('again?')\n")
    again = guild("replay", ran.json["run"])
    assert again.code == 0, again.err
    wrong = run(guild, WEIGHS)
    assert (wrong.code, wrong.json["run"]) == (1, None)
    assert "activate: cannot call begin:activate: ValueError: again?" in wrong.err
    assert f"{folder}/begin.py:2" in wrong.err


def test_a_resumed_run_keeps_its_activation(guild: Guild, project: Path, home: Home) -> None:
    with_approval = ACTIVE + "\n[tool.guildhall.tool_rules.weigh]\napproval_required = true\n"
    folder = write_package(home, "writer", with_approval, {"begin.py": ACTIVATE})
    write_mail_package(home)
    (project / "answers.yaml").write_text(WEIGHS)
    ran = guild("run", "writer", "Write to Ada", "--model", "script:answers.yaml", "--output", "json")
    assert ran.code == 4, ran.err
    (folder / "begin.py").write_text("raise SystemExit\n")
    answered = guild("approve", ran.json["asks"][0]["ask"])
    assert "It costs 85 cents." in answered.out, answered.err


@pytest.mark.req("WKR-13")
def test_a_missing_toolbox_stops_the_run_from_starting(guild: Guild, project: Path, home: Home) -> None:
    write_package(home, "writer", WRITER)
    ran = run(guild, WEIGHS)
    assert (ran.code, ran.json["run"]) == (1, None)
    assert "toolboxes: unknown toolbox 'mail'" in ran.err
    write_package(home, "mails", MAIL.replace('"mail"', '"mails"'), {"post/tools.py": TOOLS})
    assert "Did you mean 'mails'?" in run(guild, WEIGHS).err
    write_package(home, "mail", MAIL)
    assert "tool.guildhall.export: unknown module post.tools" in run(guild, WEIGHS).err
    write_mail_package(home)
    (home.toolboxes).mkdir()
    (home.toolboxes / "mail.py").write_text(TOOLS)
    assert "'mail' is ambiguous" in run(guild, WEIGHS).err
    assert guild("ls", "--all", "--json").json["done"] == []


@pytest.mark.req("WKR-7")
def test_a_package_can_be_worker_and_toolbox(guild: Guild, project: Path, home: Home) -> None:
    both = MAIL.replace('"toolbox"', '["worker", "toolbox"]\nposture = "You carry letters."\ntoolboxes = ["mail"]')
    write_package(home, "mail", both, {"post/tools.py": TOOLS, "post/prices.py": "def price(words): return 85\n"})
    write_package(home, "writer", WRITER)
    assert run(guild, WEIGHS).json["output"] == "It costs 85 cents."
    assert run(guild, WEIGHS.replace("writer", "mail"), worker="package/mail").json["output"] == "It costs 85 cents."


@pytest.mark.req("WKR-16", "WKR-12")
def test_a_provider_gets_only_the_activated_tools(guild: Guild, project: Path, home: Home) -> None:
    write_package(home, "writer", ACTIVE.replace('["mail"]', '["mail"]\ntools = ["Read"]'), {"begin.py": READS})
    write_mail_package(home)
    (project / "answers.yaml").write_text(WEIGHS)
    with ScriptedServer(project / "answers.yaml") as server:
        provider = {"ANTHROPIC_API_KEY": "script-writer", "ANTHROPIC_BASE_URL": server.anthropic_url}
        ran = guild("run", "writer", "Go", "--model", "anthropic:claude-sonnet-4-5", env=provider)
        shown = [[tool["name"] for tool in exchange.body["tools"]] for exchange in server.requests]
    assert ran.out == "It costs 85 cents.\n", ran.err
    assert shown == [["Read", "weigh"]] * 2


READS = """
def activate(context):
    assert [tool["name"] for tool in context["tools"]][:2] == ["Read", "weigh"]
    return {"tools": ["Read", "weigh"]}
"""

BOX = """
from guildhall import Toolbox, tool

TEXTS = []


@tool
def {name}_note(text: str) -> str:
    "Notes something."
    TEXTS.append(text)
    return ", ".join(TEXTS)


@tool
def {name}_hidden() -> str:
    "Not exported."


box = Toolbox("{name}", {name}_note)
"""


def test_two_packages_can_have_modules_of_the_same_name(guild: Guild, project: Path, home: Home) -> None:
    for name in ("red", "blue"):
        text = '[tool.guildhall]\ntype = "toolbox"\nexport = "tools:box"\n'
        write_package(home, name, text, {"tools.py": BOX.format(name=name)})
    write_package(home, "writer", WRITER.replace('["mail"]', '["red", "blue"]'))
    notes = [
        "{call: red_note, with: {text: a}}",
        "{call: blue_note, with: {text: b}}",
        "{call: red_note, with: {text: c}}",
    ]
    ends = "{expect: '^a, c$', say: done}"
    ran = run(guild, f"workers: {{writer: [[{', '.join([*notes, ends])}]]}}")
    assert tool_names(read_assembly(guild, ran)) == ["red_note", "blue_note", *BASE]
    assert ran.json["output"] == "done"


def test_an_activated_job_keeps_the_job_tools(guild: Guild, project: Path, home: Home) -> None:
    assert guild("package", "new", "writer", "--from", "writer").code == 0
    activation = home.packages / "writer" / "activation.py"
    activation.write_text(activation.read_text().replace("return {", 'return {"tools": [], '))
    (project / "guildhall.yaml").write_text("model: script:answers.yaml\n")
    (project / "answers.yaml").write_text("workers: {writer: [[{call: submit_result, with: {output: ok}}, {say: ok}]]}")
    job = guild("dispatch", "writer", "Write", "--wait", "--json")
    assert job.code == 0, job.err + job.out
    assembled = json.loads(guild("log", job.json["jobId"], "--json").out.splitlines()[0])["data"]
    assert "Write the text as an artifact" in assembled["system_prompt"]
    assert "submit_result" in tool_names(assembled)
    assert "memory_write" not in tool_names(assembled)


def test_a_package_can_be_called_and_tested(guild: Guild, project: Path, home: Home) -> None:
    write_package(home, "writer", ACTIVE, {"begin.py": ACTIVATE})
    write_mail_package(home)
    (project / "workers").mkdir()
    (project / "workers" / "boss.yaml").write_text("instructions: x\nallow_workers: [package/writer]\n")
    calls = "[[{call: worker_call, with: {worker: package/writer, input_data: Go}}, {say: It is done.}]]"
    ran = run(guild, WEIGHS.replace("{writer", f"{{boss: {calls}, writer"), worker="boss")
    assert ran.json["output"] == "It is done.", ran.err
    (project / "tests").mkdir()
    assert guild("script", ran.json["run"], "--out", "tests/boss.yaml").code == 0
    tested = guild("test", "tests/boss.yaml")
    assert tested.code == 0, tested.out + tested.err


def test_a_package_can_contain_its_output_schema(guild: Guild, project: Path, home: Home) -> None:
    model = "from dataclasses import dataclass\n\n@dataclass\nclass Letter:\n    text: str\n"
    text = WRITER.replace('["mail"]', "[]").replace("limits", 'output_schema_ref = "letters:Letter"\nlimits')
    write_package(home, "writer", text, {"src/letters.py": model})
    ran = run(guild, "workers: {writer: [[{output: {text: Dear Ada}}]]}")
    assert ran.json["output"] == {"text": "Dear Ada"}, ran.err


def test_an_activation_function_gets_the_meeting_and_the_project(guild: Guild, project: Path, home: Home) -> None:
    repository(project).commit({"a.md": "one"})
    assert guild("project", "add", ".", "--name", "letters").code == 0
    assert guild("package", "new", "writer", "--from", "writer").code == 0
    (project / "guildhall.yaml").write_text("model: script:answers.yaml\n")
    (project / "answers.yaml").write_text("workers: {writer: [[{say: What is it about?}]]}")
    met = guild("meet", "writer", "A letter")
    assert "What is it about?" in met.out, met.err
    refused = guild("package", "rm", "writer")
    (meeting,) = re.findall(r"\bt-\w{10}", refused.err)
    assembled = json.loads(guild("log", meeting, "--json").out.splitlines()[0])["data"]
    assert "You are talking with the user." in assembled["system_prompt"]
    assert "You work for the project letters." in assembled["system_prompt"]
    assert tool_names(assembled)[-2:] == [*BASE, "record_decision"]
