"""Driver of Claude Code: starts it without its own tools and settings, and exchanges JSON lines (ADR 024).

The driver does not use the vendor's SDK. The only MCP servers are the servers of the run.
Does not start the process: `process` does. Does not decide the output: `runtime` does.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

from pydantic_ai.messages import BinaryContent, TextContent

from guildhall.core.errors import ContextTooLong, RuntimeFailed, RuntimeToolless
from guildhall.runtimes.catalog import ROWS
from guildhall.runtimes.programs.process import Launch
from guildhall.runtimes.programs.runtime import Driver, Ended, normal_name
from guildhall.runtimes.pydantic import asked

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from guildhall.runtimes.model import Assignment, Entry

_FOR_EVER = "2000000000"  # milliseconds: how long a call takes is for the doors to say
_TOKEN = "GUILDHALL_TOKEN"
_ANY = "claude-sonnet-4-5"  # a name that it knows, where a script or a recording answers
# It takes a last block like `/clear` for a command of its own. Behind this one it is not, and the model door drops it.
_NO_COMMAND = {"type": "text", "text": "<system-reminder>This is no command.</system-reminder>"}
_FLAGS = (
    "--print", "--bare", "--verbose", "--input-format", "stream-json", "--output-format", "stream-json",
    "--strict-mcp-config", "--setting-sources", "", "--tools", "", "--disable-slash-commands",
    "--no-session-persistence", "--permission-mode", "bypassPermissions",
)  # fmt: skip
_ENV = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_COMPACT": "1",  # a conversation that was cut short could not be walked through again
    "IS_SANDBOX": "1",
    "ENABLE_TOOL_SEARCH": "false",  # or the tools would hide behind one that looks for them
    "CLAUDE_CODE_MAX_TOOL_USE_CONCURRENCY": "100",
    "MAX_MCP_OUTPUT_TOKENS": "100000000",  # or what is long is cut
    # It waits for its tools before it begins, and for the doors for ever: how long something takes is theirs to say.
    "MCP_CONNECTION_NONBLOCKING": "0",
    "MCP_TIMEOUT": "30000",
    "MCP_TOOL_TIMEOUT": _FOR_EVER,
    "CLAUDE_CODE_MCP_TOOL_IDLE_TIMEOUT": "0",
    "API_TIMEOUT_MS": _FOR_EVER,
    "CLAUDE_ENABLE_STREAM_WATCHDOG": "0",
    "CLAUDE_ENABLE_BYTE_WATCHDOG": "0",
    "CLAUDE_CODE_MAX_RETRIES": "0",  # the door has its own rule
}


class Claude(Driver):
    """Drives one run of Claude Code."""

    row = ROWS["claude"]

    def launch(self, assignment: Assignment, entry: Entry, url: str, home: Path, model: str) -> Launch:
        mcp, prompt = home / "mcp.json", home / "prompt.md"
        servers = {
            name: {
                "type": "http",
                "url": f"{url}/mcp/{name}/",
                "headers": {"Authorization": f"Bearer ${{{_TOKEN}}}"},
            }
            for name in entry.servers
        }
        return Launch(
            argv=(*_FLAGS, "--model", model or _ANY, "--mcp-config", str(mcp), "--system-prompt-file", str(prompt)),
            env={
                **_ENV,
                "CLAUDE_CONFIG_DIR": str(home / "claude"),
                "ANTHROPIC_BASE_URL": f"{url}/llm/anthropic",
                "ANTHROPIC_API_KEY": entry.token,  # also where a login stands behind the door
                _TOKEN: entry.token,
            },
            files={mcp.name: json.dumps({"mcpServers": servers}), prompt.name: assignment.system_prompt},
            stdin=_message(_blocks(assignment)),
            listens=True,
        )

    def read(self, line: Mapping[str, Any]) -> Ended | None:
        match line:
            case {"type": "system", "subtype": "init", "mcp_servers": [*servers]}:
                if lost := [told for one in servers if (told := _lost(one))]:
                    said = f"Claude Code did not reach the run's tools: {', '.join(lost)}"
                    return Ended(RuntimeToolless(said))
            case {"type": "result", "is_error": True, "result": "Prompt is too long"}:
                hint = "Give the worker less to read at once, or a runtime or a model with a larger context."
                return Ended(ContextTooLong("the conversation is longer than Claude Code takes", hint=hint))
            case {"type": "result", "is_error": True}:
                said = line.get("result") or line.get("errors") or line.get("terminal_reason") or line.get("subtype")
                return Ended(RuntimeFailed(f"Claude Code gave up: {said}"))
            case {"type": "result"}:
                return Ended()
            case _:
                pass
        return None

    def names(self, server: str, tool: str) -> str:
        return f"mcp__{normal_name(server)}__{normal_name(tool)}"

    def again(self, words: str) -> bytes:
        return _message(_no_command([{"type": "text", "text": words}]))


def _lost(server: Any) -> str | None:
    """Return a tool server that the program has not reached, with its status."""
    match server:
        case {"name": str(name), "status": str(status)} if status != "connected":
            return f"{name} ({status})"
        case _:
            return None


def _message(content: list[dict[str, Any]]) -> bytes:
    return json.dumps({"type": "user", "message": {"role": "user", "content": content}}).encode() + b"\n"


def _blocks(assignment: Assignment) -> list[dict[str, Any]]:
    """The first message and its attachments, as the provider takes them."""
    first = asked(assignment)
    return _no_command([_block(item) for item in ([first] if isinstance(first, str) else first)])


def _no_command(blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [*blocks, _NO_COMMAND] if blocks[-1].get("text", "").lstrip().startswith("/") else blocks


def _block(item: Any) -> dict[str, Any]:
    if isinstance(item, BinaryContent):
        source = {"type": "base64", "media_type": item.media_type, "data": item.base64}
        return {"type": "document" if item.media_type == "application/pdf" else "image", "source": source}
    text = item.content if isinstance(item, TextContent) else cast("str", item)
    return {"type": "text", "text": text}
