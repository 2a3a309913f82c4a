"""Driver of Claude Code: starts it without its own tools and settings, and exchanges JSON lines (ADR 024).

The driver does not use the vendor's SDK. The only MCP servers are the servers of the run.
Does not start the process: `process` does. Does not decide the output: `runtime` does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from pydantic_ai.messages import BinaryContent, TextContent

from guildhall.core.errors import ContextTooLong, RuntimeFailed, RuntimeToolless
from guildhall.runtimes.catalog import RUNTIMES
from guildhall.runtimes.programs.process import Launch
from guildhall.runtimes.programs.runtime import Driver, TurnEnd, normal_name
from guildhall.runtimes.pydantic import input_content

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.runtimes.model import Assignment, DoorAccess

_FOREVER_MS = "2000000000"  # the doors limit the time of calls
_TOKEN = "GUILDHALL_TOKEN"
_ANY_MODEL = "claude-sonnet-4-5"  # any known name, for scripts and recordings
# Claude Code executes a last block such as `/clear` as a command. This block prevents that, and the door drops it.
_NO_COMMAND = {"type": "text", "text": "<system-reminder>This is not a command.</system-reminder>"}
_FLAGS = (
    "--print", "--bare", "--verbose", "--input-format", "stream-json", "--output-format", "stream-json",
    "--strict-mcp-config", "--setting-sources", "", "--tools", "", "--disable-slash-commands",
    "--no-session-persistence", "--permission-mode", "bypassPermissions",
)  # fmt: skip
_ENV = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_COMPACT": "1",  # a compacted conversation could not be replayed
    "IS_SANDBOX": "1",
    "ENABLE_TOOL_SEARCH": "false",  # otherwise a search tool replaces the tools
    "CLAUDE_CODE_MAX_TOOL_USE_CONCURRENCY": "100",
    "MAX_MCP_OUTPUT_TOKENS": "100000000",  # otherwise long results are truncated
    # Claude Code waits for its tools before it begins. The doors limit the time of calls.
    "MCP_CONNECTION_NONBLOCKING": "0",
    "MCP_TIMEOUT": "30000",
    "MCP_TOOL_TIMEOUT": _FOREVER_MS,
    "CLAUDE_CODE_MCP_TOOL_IDLE_TIMEOUT": "0",
    "API_TIMEOUT_MS": _FOREVER_MS,
    "CLAUDE_ENABLE_STREAM_WATCHDOG": "0",
    "CLAUDE_ENABLE_BYTE_WATCHDOG": "0",
    "CLAUDE_CODE_MAX_RETRIES": "0",  # the door retries
}


class Claude(Driver):
    """Drives one run of Claude Code."""

    info = RUNTIMES["claude"]

    def launch(self, assignment: Assignment, access: DoorAccess, url: str, home: Path, model: str) -> Launch:
        mcp, prompt = home / "mcp.json", home / "prompt.md"
        servers = {
            name: {"type": "http", "url": f"{url}/mcp/{name}/", "headers": {"Authorization": f"Bearer ${{{_TOKEN}}}"}}
            for name in access.servers
        }
        files = ("--mcp-config", str(mcp), "--system-prompt-file", str(prompt))
        return Launch(
            argv=(*_FLAGS, "--model", model or _ANY_MODEL, *_effort(assignment), *files),
            env={
                **_ENV,
                **({"MAX_THINKING_TOKENS": "0"} if assignment.settings.get("thinking") == "off" else {}),
                "CLAUDE_CONFIG_DIR": str(home / "claude"),
                "ANTHROPIC_BASE_URL": f"{url}/llm/anthropic",
                "ANTHROPIC_API_KEY": access.token,  # also with a Claude login
                _TOKEN: access.token,
            },
            files={mcp.name: json.dumps({"mcpServers": servers}), prompt.name: assignment.system_prompt},
            stdin=_message(_message_blocks(assignment)),
            keeps_stdin_open=True,
        )

    def read(self, line: Mapping[str, Any]) -> TurnEnd | None:
        match line:
            case {"type": "system", "subtype": "init", "mcp_servers": [*servers]}:
                if problems := [problem for server in servers if (problem := _server_problem(server))]:
                    text = f"Claude Code is not connected to the run's tools: {', '.join(problems)}"
                    return TurnEnd(RuntimeToolless(text))
            case {"type": "result", "is_error": True, "result": "Prompt is too long"}:
                hint = "Give the worker less input, or use a runtime or model with a larger context."
                return TurnEnd(ContextTooLong("the conversation is too long for Claude Code", hint=hint))
            case {"type": "result", "is_error": True}:
                fields = ("result", "errors", "terminal_reason", "subtype")
                reason = next(filter(None, map(line.get, fields)), None)
                return TurnEnd(RuntimeFailed(f"Claude Code failed: {reason or 'no reason given'}"))
            case {"type": "result"}:
                return TurnEnd()
            case _:
                pass
        return None

    def tool_name(self, server: str, tool: str) -> str:
        return f"mcp__{normal_name(server)}__{normal_name(tool)}"

    def next_input(self, text: str) -> bytes:
        return _message(_no_command([{"type": "text", "text": text}]))


def _effort(assignment: Assignment) -> tuple[str, ...]:
    level = assignment.settings.get("thinking", "off")
    return () if level == "off" else ("--effort", "low" if level == "minimal" else level)


def _server_problem(server: Any) -> str | None:
    """Return the name and status of a tool server that is not connected, or None."""
    match server:
        case {"name": str(name), "status": str(status)} if status != "connected":
            return f"{name} ({status})"
        case _:
            return None


def _message(content: list[dict[str, Any]]) -> bytes:
    return json.dumps({"type": "user", "message": {"role": "user", "content": content}}).encode() + b"\n"


def _message_blocks(assignment: Assignment) -> list[dict[str, Any]]:
    """Return the first message and its attachments in the provider's format."""
    first = input_content(assignment)
    return _no_command([_block(item) for item in ([first] if isinstance(first, str) else first)])


def _no_command(blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [*blocks, _NO_COMMAND] if blocks[-1].get("text", "").lstrip().startswith("/") else blocks


def _block(item: Any) -> dict[str, Any]:
    if isinstance(item, BinaryContent):
        source = {"type": "base64", "media_type": item.media_type, "data": item.base64}
        return {"type": "document" if item.media_type == "application/pdf" else "image", "source": source}
    text = item.content if isinstance(item, TextContent) else cast("str", item)
    return {"type": "text", "text": text}
