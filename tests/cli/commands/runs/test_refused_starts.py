"""A plan, a run, a start in the background and a dispatch refuse the same starts, before anything is executed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.runs.places import put_worker

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Guild

SONNET = "anthropic:claude-sonnet-5-5"
KEY = {"ANTHROPIC_API_KEY": "sk-ant-x"}
NO_CODEX = {"GUILDHALL_CODEX": "/none/codex"}
FREE = "script:free.yaml"
NO_PRICE = "free.yaml has no known price, so a budget cannot be enforced"
# Fields of the worker, variables, and the texts of all problems.
FAULTS: dict[str, tuple[dict[str, Any], dict[str, str], list[str]]] = {
    "settings": ({"model": SONNET, "model_settings": {"seed": 1}}, KEY, [f"{SONNET} cannot apply `seed`"]),
    "key": ({"model": SONNET}, {}, ["ANTHROPIC_API_KEY"]),
    "provider": ({"model": "nobody:none"}, {}, ["model: unknown provider 'nobody'"]),
    "script": ({"model": "script:none.yaml"}, {}, ["script not found"]),
    "program and key": ({"model": "openai:gpt-5", "runtime": "codex"}, NO_CODEX, ["/none/codex", "OPENAI_API_KEY"]),
    "runtime setting": (
        {"model": SONNET, "runtime": "opencode", "model_settings": {"thinking": "high"}},
        {**KEY, "GUILDHALL_OPENCODE": "/none/opencode"},
        ["/none/opencode", "OpenCode cannot apply `thinking`"],
    ),
    "price": ({"model": FREE, "limits": {"max_budget_usd": 1.0}}, {}, [NO_PRICE]),
    "retired": ({"model": FREE, "status": "retired"}, {}, ["is retired"]),
    "toolbox": ({"model": FREE, "toolboxes": ["none"]}, {}, ["none"]),
    "schema": ({"model": FREE, "output_schema_ref": "odd.json"}, {}, ["invalid JSON"]),
}
COMMANDS = (["run", "scribe", "go"], ["start", "scribe", "--background"], ["dispatch", "scribe", "go"])
# Faults of a workflow alone.
TEAM_FAULTS: dict[str, tuple[dict[str, Any], dict[str, str], list[str]]] = {
    "budget": ({"model": FREE}, {}, [NO_PRICE]),
    "draft": ({"model": FREE, "status": "draft"}, {}, ["is a draft"]),
}


@pytest.fixture(autouse=True)
def free_model(project: Path) -> None:
    (project / "free.yaml").write_text(json.dumps({"workers": {"*": [[{"say": "done"}]]}, "repeat": True}))
    (project / "odd.json").write_text("{")


@pytest.mark.req("X-16")
@pytest.mark.parametrize("fault", FAULTS)
def test_the_plan_of_a_worker_names_what_refuses_its_start(guild_hall: Guild, project: Path, fault: str) -> None:
    fields, env, messages = FAULTS[fault]
    put_worker(project, sandboxes=None, tool_rules=None, **fields)
    planned = guild_hall("plan", "scribe", "--json", env=env)
    assert planned.code == 1
    problems = planned.json["problems"]
    assert len(problems) == len(messages)
    for words in COMMANDS:
        refused = guild_hall(*words, env=env)
        assert refused.code != 0, words
        assert [message for message in (*messages, *problems) if message not in refused.err] == [], refused.err
    assert guild_hall("ls", "--all", "--json").json["done"] == []


@pytest.mark.req("X-16")
@pytest.mark.parametrize("fault", [*FAULTS, *TEAM_FAULTS])
def test_the_plan_of_a_workflow_names_what_refuses_its_start(guild_hall: Guild, project: Path, fault: str) -> None:
    fields, env, messages = {**FAULTS, **TEAM_FAULTS}[fault]
    put_worker(project, sandboxes=None, tool_rules=None, **fields)
    agent = {"worker": "scribe", **({"wakeup": "5m"} if fault == "draft" else {})}
    team = {"agents": {"ann": agent}, "setup": [{"shell": "touch it-ran"}], "kickoff": "@ann go"}
    (project / "team.yaml").write_text(json.dumps({**team, **({"budget": 2} if fault == "budget" else {})}))
    assert guild_hall("trust", "team.yaml", "--yes").code == 0
    planned = guild_hall("plan", "team.yaml", "--json", env=env)
    assert planned.code == 1
    problems = planned.json["problems"]
    assert [problem for problem in problems if not problem.startswith("agent ann: ")] == []
    assert len(problems) == len(messages)
    for words in (["run", "team.yaml"], ["start", "team.yaml", "--background"]):
        refused = guild_hall(*words, env=env)
        assert refused.code != 0
        assert [message for message in (*messages, *problems) if message not in refused.err] == [], refused.err
    assert not (project / "it-ran").exists()
    assert guild_hall("ls", "--all", "--json").json["done"] == []


def test_check_reports_a_setting_that_the_model_ignores(guild: Guild, project: Path) -> None:
    put_worker(project, model=SONNET, model_settings={"seed": 1})
    (project / "team.yaml").write_text(json.dumps({"agents": {"ann": {"worker": "scribe"}}, "kickoff": "@ann go"}))
    for name in ("scribe", "team.yaml"):
        checked = guild("check", name, env=KEY)
        assert (checked.code, f"{SONNET} cannot apply `seed`" in checked.err) == (2, True), checked


def test_a_problem_of_the_own_model_does_not_count_if_another_model_is_used(guild: Guild, project: Path) -> None:
    put_worker(project, model="script:none.yaml")
    assert guild("plan", "scribe", "--override-model", FREE).code == 0
    assert guild("run", "scribe", "go", "--override-model", FREE).code == 0
