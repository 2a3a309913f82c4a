"""Settings for Claude Code and Codex in the project and the user's home have no effect on a run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.testing.scripted_server import ScriptedServer
from tests.clis import claude_program, codex_program
from tests.hall.runtime_project import RuntimeProject

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Guild

PROGRAMS = {
    "claude": claude_program,
    "codex": codex_program,
}  # OpenCode is tested in test_opencode.py, because it starts slowly


def write_foreign_settings(place: Path, trace: Path) -> None:
    """Write instructions, hooks and MCP servers to the places where the programs look for them."""
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


def find_texts(content: Any) -> list[str]:
    """Return all texts in a message, an instruction or a list of them."""
    if isinstance(content, str):
        return [content]
    if isinstance(content, list):
        return [text for one in content for text in find_texts(one)]
    return find_texts(content.get("content") or content.get("text") or []) if isinstance(content, dict) else []


def find_tool_names(tools: list[dict[str, Any]]) -> list[str]:
    """Return the names of the tools in a request, including the tools of namespaces."""
    found = [[f"{one['name']}__{tool['name']}" for tool in one["tools"]] if "tools" in one else one for one in tools]
    flat = [one for some in found for one in (some if isinstance(some, list) else [some["name"]])]
    return sorted(name.rpartition("tools_")[2].lstrip("_") for name in flat)


@pytest.mark.req("WKR-18", "WKR-15", "WKR-16")
@pytest.mark.parametrize("runtime", PROGRAMS)
def test_a_provider_gets_only_the_prompt_the_task_and_the_tools(
    guild: Guild, project: Path, tmp_path: Path, runtime: str
) -> None:
    program: Callable[[], Path] = PROGRAMS[runtime]
    runtime_project = RuntimeProject(guild, project, runtime, program())
    trace, person = tmp_path / "trace", tmp_path / "person"
    trace.mkdir()
    write_foreign_settings(project, trace)
    write_foreign_settings(person, trace)
    model = "openai:gpt-5" if runtime == "codex" else "anthropic:claude-sonnet-4-5"
    runtime_project.write_worker([{"say": "Seen."}], model=model)
    with ScriptedServer(project / "script.yaml") as server:
        runtime_project.env |= {
            "HOME": str(person),
            "XDG_CONFIG_HOME": str(person / ".config"),
            "CODEX_HOME": str(person / ".codex"),
            "ANTHROPIC_BASE_URL": server.anthropic_url,
            "ANTHROPIC_API_KEY": "script-bob",
            "OPENAI_BASE_URL": server.openai_url,
            "OPENAI_API_KEY": "script-bob",
        }
        ran = runtime_project.run()
    assert (ran.code, ran.out) == (0, "Seen.\n"), ran.err
    assert list(trace.iterdir()) == []
    [asked] = [exchange.body for exchange in server.requests if exchange.answered]
    assert asked is not None
    assert find_texts(asked.get("system") or asked.get("instructions")) == ["You are Bob."]
    assert find_texts(asked.get("messages") or asked.get("input")) == ["Go."]
    tools = ["sandbox_list", "sandbox_read_text", "sandbox_write_text"]
    assert find_tool_names(asked["tools"]) == tools
    assert asked["model"] == model.partition(":")[2]
