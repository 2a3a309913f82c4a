"""Workflow files in the forms of another published system load and run without changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Guild

SCRIPT = """\
price: {input: 1.0, output: 1.0}
repeat: true
workers:
  alice: [[{expect_system: "You are Alice in @HERE@", say: hello}]]
  "*": [[{say: hello}]]
"""
REVIEW = """\
name: review
params:
  - {name: pr, type: number, short: p, required: true, description: the pull request}
  - {name: strict, type: boolean, default: false}
agents:
  - name: alice
    backend: mock
    model: script:s.yaml
    max_steps: 3
    max_tokens: 900
    prompt: {system: "You are Alice in ${{ source.dir }}"}
  - name: bob
    backend: sdk
    model: script:s.yaml
    system_prompt_file: bob.md
  - name: carol
    backend: default
    provider: {name: anthropic}
    model: claude-sonnet-5-5
    system_prompt: You are Carol.
setup:
  - shell: 'echo "PR $PR_NUMBER in ${{ source.dir }} by $USER"; LOCAL=1; echo "$LOCAL"'
    as: info
kickoff: |
  @alice @bob ${{ info }} #${{ params.pr }}
"""


@pytest.fixture
def folder(project: Path) -> Path:
    (project / "s.yaml").write_text(SCRIPT.replace("@HERE@", str(project)))
    (project / "bob.md").write_text("You are Bob.")
    return project


@pytest.mark.req("AW-1")
def test_a_file_in_the_published_form_runs(guild: Guild, folder: Path) -> None:
    (folder / "review.yaml").write_text(REVIEW)
    keys = {"ANTHROPIC_API_KEY": "sk-ant-x"}
    plan = guild("plan", "review.yaml", "--param", "pr=7", "--json", env=keys).json
    assert plan["problems"] == []
    assert plan["warnings"] == ["setup[0].shell: $PR_NUMBER is empty: add `env: [PR_NUMBER]` to the file"]
    agents = {agent["agent"]: agent for agent in plan["agents"]}
    assert agents["carol"]["model"] == "anthropic:claude-sonnet-5-5"
    assert {agent["runtime"]["name"] for agent in plan["agents"]} == {"pydantic"}
    assert "$PR_NUMBER is empty" in guild("check", "review.yaml").err
    guild("trust", "review.yaml", "--yes")
    ran = guild("run", "review.yaml", "--param", "pr=7", "--output", "json", env=keys)
    assert ran.json["status"] == "completed", ran.err
    for params, kind in ((("pr=x",), "number"), (("pr=7", "strict=maybe"), "boolean")):
        ran = guild("run", "review.yaml", *(word for param in params for word in ("--param", param)))
        assert (ran.code, f"expected a {kind}" in ran.err) == (2, True), ran.err


@pytest.mark.parametrize(
    ("agent", "message", "hint"),
    [
        ("timeout: 120000", "a.timeout: the unit of 120000 is missing", "Write 120s if you mean milliseconds"),
        ("wakeup: 300000", "a.wakeup: the unit of 300000 is missing", "Write 300s if you mean milliseconds"),
        ("max_tokens: many", "expected a whole number (got 'many')", ""),
        ("soul: x", "a.soul: unknown field", "system_prompt"),
        ("schedule: 5m", "a.schedule: unknown field", "wakeup"),
        ("backend: gpt", "a.backend: expected 'pydantic'", ""),
        ("backend: mock, model: anthropic:x", "`backend: mock` needs a script as the model", "script:FILE"),
        ("provider: {name: openai, base_url: http://x}, model: y", "`provider.base_url` cannot be set", "BASE_URL"),
        ("provider: openai, model: anthropic:y", "names another provider", ""),
        ("system_prompt_file: prompt.prompty", "a.system_prompt_file: invalid prompt file", ""),
    ],
)
def test_a_form_with_another_meaning_is_explained(
    guild: Guild, folder: Path, agent: str, message: str, hint: str
) -> None:
    prompt = "" if "system_prompt_file" in agent else ", system_prompt: x"
    (folder / "w.yaml").write_text(f"agents:\n  a: {{{agent}{prompt}}}\n")
    ran = guild("check", "w.yaml")
    assert ran.code == 2
    assert "w.yaml:2: agents" in ran.err
    assert message in ran.err
    assert hint in ran.err


def test_a_list_of_agents_needs_names(guild: Guild, folder: Path) -> None:
    (folder / "w.yaml").write_text("agents:\n  - {name: a, system_prompt: x}\n  - {system_prompt: x}\n")
    ran = guild("check", "w.yaml")
    assert "w.yaml:3: agents[1]: in a list, each agent needs a `name:` of its own" in ran.err
    (folder / "workers").mkdir()
    (folder / "workers" / "helper.yaml").write_text("instructions: x\nmodel: script:s.yaml\n")
    (folder / "w.yaml").write_text("agents: [helper]\nkickoff: '@helper go'\n")
    assert guild("run", "w.yaml", "--output", "json").json["status"] == "completed"
