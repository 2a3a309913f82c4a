"""Packages at work, through the real command: a worker package with a toolbox package, and how its runs begin."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.guild.packages import MAIL, TOOLS, WRITER, put_mail, put_package

if TYPE_CHECKING:
    from guildhall.core.paths import Home
    from tests.conftest import Guild, Ran

BASE = ["record_decision", "memory_read", "memory_write", "memory_list"]
WEIGHS = "workers: {writer: [[{call: weigh, with: {words: 500}}, {expect: '85 cents', say: It costs 85 cents.}]]}"
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
    """What a run began with, as it is on record."""
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
    assert "toolboxes: there is no toolbox 'mail'" in ran.err
    put_package(home, "mails", MAIL.replace('"mail"', '"mails"'), {"post/tools.py": TOOLS})
    assert "Did you mean 'mails'?" in run(guild, WEIGHS).err
    put_package(home, "mail", MAIL)
    assert "mail/pyproject.toml: tool.guildhall.export: there is no module post.tools" in run(guild, WEIGHS).err
    put_mail(home)
    (home.toolboxes).mkdir()
    (home.toolboxes / "mail.py").write_text(TOOLS)
    assert "there are two toolboxes 'mail'" in run(guild, WEIGHS).err
    assert guild("ls", "--all", "--json").json["done"] == []


@pytest.mark.req("WKR-7")
def test_a_package_is_worker_and_toolbox_at_once(guild: Guild, project: Path, home: Home) -> None:
    both = MAIL.replace('"toolbox"', '["worker", "toolbox"]\nposture = "You carry letters."\ntoolboxes = ["mail"]')
    put_package(home, "mail", both, {"post/tools.py": TOOLS, "post/prices.py": "def price(words): return 85\n"})
    put_package(home, "writer", WRITER)
    assert run(guild, WEIGHS).json["output"] == "It costs 85 cents."
    assert run(guild, WEIGHS.replace("writer", "mail"), worker="package/mail").json["output"] == "It costs 85 cents."
