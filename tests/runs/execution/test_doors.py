"""The doors as the provider sees them: requests of the real Anthropic and OpenAI clients."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.testing.scripted_server import ScriptedServer
from tests.runs.places import journal, kinds, model_input, put_worker

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from guildhall.core.paths import Home
    from tests.conftest import Guild

KEY = "script-scribe"
TOOLBOX = '''
import os

from guildhall import Toolbox, tool


@tool
def environment() -> str:
    """Return the environment of the handler."""
    return repr(sorted(os.environ.items()))


toolbox = Toolbox("looking", environment)
'''
BASE = ["memory_write"]
SANDBOX_TOOLS = ["sandbox_list", "sandbox_read_text", "sandbox_write_text"]
CLAUDE = "anthropic:claude-sonnet-4-5"


class Provider:
    """A scripted provider on a loopback port, and the environment variables that select it."""

    def __init__(self, server: ScriptedServer) -> None:
        self.server = server
        self.env = {
            "ANTHROPIC_API_KEY": KEY,
            "ANTHROPIC_BASE_URL": server.anthropic_url,
            "OPENAI_API_KEY": KEY,
            "OPENAI_BASE_URL": server.openai_url,
        }

    @property
    def bodies(self) -> list[Any]:
        return [exchange.body for exchange in self.server.requests]


@pytest.fixture
def provider(project: Path, home: Home) -> Generator[Provider]:
    home.toolboxes.mkdir(parents=True)
    (home.toolboxes / "looking.py").write_text(TOOLBOX)
    script = project / "served.yaml"
    calls = [{"call": "Bash", "with": {"command": "env; cat /proc/*/environ"}}, {"call": "environment"}]
    script.write_text(json.dumps({"workers": {"scribe": [[{"calls": calls}, {"say": "seen"}]]}, "repeat": True}))
    with ScriptedServer(script) as server:
        yield Provider(server)


def tool_names(body: Any) -> list[str]:
    return [tool.get("name") or tool["function"]["name"] for tool in body.get("tools", [])]


@pytest.mark.req("WKR-12", "WKR-16")
@pytest.mark.parametrize("model", [CLAUDE, "openai:gpt-5", "openai-chat:gpt-5"])
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"sandboxes": None}, BASE),
        ({"sandboxes": None, "base": False}, []),
        ({}, [*SANDBOX_TOOLS, *BASE]),
        ({"sandboxes": {"in": {"path": "."}}}, [*SANDBOX_TOOLS[:2], *BASE]),
        (
            {"sandboxes": None, "toolboxes": ["looking"], "tools": ["Read", "Bash"]},
            ["Read", "Bash", "environment", *BASE],
        ),
    ],
)
def test_the_model_receives_exactly_the_tools_of_the_run(
    guild: Guild, project: Path, provider: Provider, model: str, fields: dict[str, Any], expected: list[str]
) -> None:
    put_worker(project, tool_rules=None, **fields)
    ran = guild("run", "scribe", "go", "--model", model, "--output", "json", env=provider.env)
    assert (ran.code, ran.json["output"]) == (0, "seen"), ran
    assert len(provider.bodies) == 2
    for body in provider.bodies:
        assert tool_names(body) == expected
    frozen = journal(guild, ran.json["run"])[0]["data"]["tools"]
    assert [tool["name"] for tool in frozen] == expected


@pytest.mark.req("WKR-15")
def test_the_system_prompt_contains_only_the_instructions_of_the_worker(
    guild: Guild, project: Path, provider: Provider
) -> None:
    put_worker(project, instructions="Be brief.\n  And kind.\n", sandboxes=None)
    guild("run", "scribe", "look around", "--model", CLAUDE, env=provider.env)
    body = provider.bodies[0]
    system = body["system"] if isinstance(body["system"], str) else "".join(part["text"] for part in body["system"])
    assert system == "Be brief.\n  And kind.\n"
    assert len(body["messages"]) == 1
    assert "look around" in str(body["messages"][0])
    assert str(project) not in json.dumps(body)


@pytest.mark.req("WKR-3")
def test_instructions_do_not_add_tools(guild: Guild, project: Path, provider: Provider) -> None:
    put_worker(project, instructions="You have Bash, Write and WebFetch. Use them.", sandboxes=None, tool_rules=None)
    ran = guild("run", "scribe", "go", "--model", CLAUDE, "--output", "json", env=provider.env)
    assert tool_names(provider.bodies[0]) == BASE
    assert "Unknown tool 'Bash'." in model_input(journal(guild, ran.json["run"]))


@pytest.mark.req("X-14")
def test_no_tool_process_and_no_file_of_the_home_contains_a_key(
    guild: Guild, project: Path, provider: Provider, home: Home
) -> None:
    put_worker(project, sandboxes=None, toolboxes=["looking"], tools=["Bash"], tool_rules=None)
    env = {**provider.env, "MY_TOKEN": "hunter2-hunter2", "GUILDHALL_MODEL": CLAUDE}
    ran = guild("run", "scribe", "go", "--output", "json", env=env)
    assert ran.code == 0, ran
    entries = journal(guild, ran.json["run"])
    results = [str(entry["data"]["result"]) for entry in entries if entry["kind"] == "tool_ended"]
    assert len(results) == 2
    assert all("PATH" in result for result in results)
    for result in results:
        assert KEY not in result
        assert "hunter2" not in result
        assert "API_KEY" not in result
        assert "GUILDHALL_" not in result
    for file in home.path.rglob("*"):
        if file.is_file():
            data = file.read_bytes()
            assert KEY.encode() not in data, file
            assert b"hunter2" not in data, file


@pytest.mark.req("X-14", "X-3")
@pytest.mark.parametrize(("model", "field"), [(CLAUDE, "max_tokens"), ("openai:gpt-5", "max_output_tokens")])
def test_the_maximum_length_of_an_answer_is_what_the_budget_pays_for(
    guild: Guild, project: Path, provider: Provider, model: str, field: str
) -> None:
    put_worker(project, sandboxes=None, limits={"max_budget_usd": 0.02})
    ran = guild("run", "scribe", "go", "--model", model, "--output", "json", env=provider.env)
    assert ran.code == 0, ran
    asked = [entry["data"] for entry in journal(guild, ran.json["run"]) if entry["kind"] == "model_asked"]
    assert [body[field] for body in provider.bodies] == [data["max_tokens"] for data in asked]
    assert all(0 < data["reserved_usd"] <= 0.02 for data in asked)
    assert all(0 < data["max_tokens"] < 16_384 for data in asked)  # less than the default maximum


@pytest.mark.req("X-14")
def test_each_answer_is_recorded_before_its_tool_calls_start(guild: Guild, project: Path, provider: Provider) -> None:
    put_worker(project, sandboxes=None, toolboxes=["looking"], tools=["Bash"], tool_rules=None)
    ran = guild("run", "scribe", "go", "--model", CLAUDE, "--output", "json", env=provider.env)
    order = kinds(journal(guild, ran.json["run"]))
    assert order[:3] == ["assembled", "model_asked", "model_answered"]
    assert order.index("tool_started") > order.index("model_answered")
    assert ran.json["usage"]["turns"] == 2
    assert ran.json["cost_usd"] > 0


def test_a_missing_key_is_reported_before_the_run_starts(guild: Guild, project: Path) -> None:
    put_worker(project)
    ran = guild("run", "scribe", "go", "--model", CLAUDE)
    assert ran.code == 2
    assert "ANTHROPIC_API_KEY" in ran.err
    assert guild("ls", "--all", "--json").json["done"] == []


def test_a_run_with_a_rejected_key_fails_and_can_be_resumed(guild: Guild, project: Path, provider: Provider) -> None:
    put_worker(project, sandboxes=None)
    wrong = {**provider.env, "ANTHROPIC_API_KEY": "script-nobody-knows-this"}
    ran = guild("run", "scribe", "go", "--model", CLAUDE, "--output", "json", env=wrong)
    assert ran.code == 1
    assert "script-nobody" not in ran.out + ran.err
    assert guild("resume", ran.json["run"], env=provider.env).code == 0
