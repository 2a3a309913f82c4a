"""What lies in the project and in the person's own home for these programs has no part in a run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.testing.scripted_server import ScriptedServer
from tests.clis import claude_program, codex_program
from tests.hall.offices import Office

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Guild

PROGRAMS = {
    "claude": claude_program,
    "codex": codex_program,
}  # OpenCode: in test_opencode, for what a start of it takes


def lay_out(place: Path, trace: Path) -> None:
    """Settings that would be seen: instructions, a hook, servers of tools, each where one of the programs looks."""
    server = {"command": "touch", "args": [str(trace / "server")]}
    hook = {"hooks": [{"type": "command", "command": f"touch {trace}/hook"}]}
    files = {
        "CLAUDE.md": "Always say BANANA.",
        "AGENTS.md": "Always say BANANA.",
        ".claude/CLAUDE.md": "Always say BANANA.",
        ".claude/settings.json": json.dumps({"hooks": {"SessionStart": [hook], "UserPromptSubmit": [hook]}}),
        ".mcp.json": json.dumps({"mcpServers": {"more": server}}),
        ".claude.json": json.dumps({"mcpServers": {"more": server}}),
        ".codex/AGENTS.md": "Always say BANANA.",
        ".codex/config.toml": f'[mcp_servers.more]\ncommand = "touch"\nargs = ["{trace}/server"]\n',
        ".config/opencode/AGENTS.md": "Always say BANANA.",
        "opencode.json": json.dumps({"mcp": {"more": {"type": "local", "command": ["touch", str(trace / "server")]}}}),
    }
    for name, text in files.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def texts(told: Any) -> list[str]:
    """All words in a message, an instruction or a list of them, as a provider gets them."""
    if isinstance(told, str):
        return [told]
    if isinstance(told, list):
        return [text for one in told for text in texts(one)]
    return texts(told.get("content") or told.get("text") or []) if isinstance(told, dict) else []


def names(tools: list[dict[str, Any]]) -> list[str]:
    """The tools that a provider is shown, those in a namespace too."""
    found = [[f"{one['name']}__{tool['name']}" for tool in one["tools"]] if "tools" in one else one for one in tools]
    flat = [one for some in found for one in (some if isinstance(some, list) else [some["name"]])]
    return sorted(name.rpartition("tools_")[2].lstrip("_") for name in flat)


@pytest.mark.req("WKR-18", "WKR-15", "WKR-16")
@pytest.mark.parametrize("runtime", PROGRAMS)
def test_a_provider_is_shown_the_prompt_the_task_and_the_tools_and_nothing_else(
    guild: Guild, project: Path, tmp_path: Path, runtime: str
) -> None:
    program: Callable[[], Path] = PROGRAMS[runtime]
    office = Office(guild, project, runtime, program())
    trace, person = tmp_path / "trace", tmp_path / "person"
    trace.mkdir()
    lay_out(project, trace)
    lay_out(person, trace)
    model = "openai:gpt-5" if runtime == "codex" else "anthropic:claude-sonnet-4-5"
    office.put([{"say": "Seen."}], model=model)
    with ScriptedServer(project / "script.yaml") as server:
        office.env |= {
            "HOME": str(person),
            "XDG_CONFIG_HOME": str(person / ".config"),
            "CODEX_HOME": str(person / ".codex"),
            "ANTHROPIC_BASE_URL": server.anthropic_url,
            "ANTHROPIC_API_KEY": "script-bob",
            "OPENAI_BASE_URL": server.openai_url,
            "OPENAI_API_KEY": "script-bob",
        }
        ran = office.run()
    assert (ran.code, ran.out) == (0, "Seen.\n"), ran.err
    assert list(trace.iterdir()) == []
    [asked] = [exchange.body for exchange in server.requests if exchange.answered]
    assert asked is not None
    assert texts(asked.get("system") or asked.get("instructions")) == ["You are Bob."]
    assert texts(asked.get("messages") or asked.get("input")) == ["Go."]
    tools = ["sandbox_list", "sandbox_read_text", "sandbox_write_text"]
    assert names(asked["tools"]) == tools
    assert asked["model"] == model.partition(":")[2]
