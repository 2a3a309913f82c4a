"""The real programs Claude Code, Codex and OpenCode, from the cache of `scripts/clis`."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from guildhall.testing.scripted_server import ScriptedServer

_CACHE = Path(os.environ.get("TESTED_CLIS") or Path.home() / ".cache" / "guildhall" / "clis")
_TIMEOUT_S = 60.0


def find_program(pattern: str) -> Path:
    """Return a program of the cache, or skip the test."""
    found = sorted(_CACHE.glob(pattern))
    if not found:
        pytest.skip(f"{pattern} is missing: run scripts/clis")
    return found[-1]


def claude_program() -> Path:
    return find_program("claude-agent-sdk-*/claude_agent_sdk/_bundled/claude")


def codex_program() -> Path:
    return find_program("codex-*/codex")


def opencode_program() -> Path:
    return find_program("opencode-*/opencode")


def find_program_pids(folder: Path) -> list[int]:
    """Return the pids of programs whose home directories are in a folder."""
    found: list[int] = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if f"{folder}/guild-home-".encode() in line and b"bwrap" not in line[:100]:
            found.append(int(process.name))
    return found


def run_claude(
    prompt: str, *, server: ScriptedServer, mcp: Mapping[str, Any], cwd: Path, scratch: Path
) -> dict[str, Any]:
    """Run Claude Code once with a scripted model and only these MCP servers, and return its result."""
    program = claude_program()
    scratch.mkdir()
    (scratch / "mcp.json").write_text(json.dumps(mcp))
    words = ["-p", prompt, "--output-format", "json", "--mcp-config", str(scratch / "mcp.json"), "--strict-mcp-config"]
    words += ["--tools", "", "--allowedTools", "mcp__guild__*", "--setting-sources", "", "--max-turns", "20"]
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(scratch),
        "CLAUDE_CONFIG_DIR": str(scratch / "config"),
        "ANTHROPIC_BASE_URL": server.anthropic_url,
        "ANTHROPIC_API_KEY": "script-claude",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_MAX_RETRIES": "1",
        "ENABLE_TOOL_SEARCH": "false",
        "IS_SANDBOX": "1",
    }
    ran = subprocess.run(
        [program, *words], cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT_S
    )
    assert ran.returncode == 0, (ran.stdout, ran.stderr)
    return json.loads(ran.stdout)
