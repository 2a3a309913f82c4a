"""Driver of Cursor's agent: starts it with the user's key and the run's MCP servers, and reads its final text.

Cursor calls its models itself, over the network. The model door sees no call, and the output is the text that Cursor
reports. Prompt and message are on the command line, with at most 120,000 bytes.
Does not restart after a crash: completed tool calls would be repeated.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from guildhall.core.errors import GuildError, ModelUnusable, RuntimeFailed
from guildhall.runtimes.catalog import RUNTIMES
from guildhall.runtimes.programs.process import Launch
from guildhall.runtimes.programs.runtime import Driver, TurnEnd, check_attachments, message_text

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.runtimes.model import Assignment, DoorAccess

KEY = "CURSOR_API_KEY"
_FLAGS = ("-p", "--force", "--approve-mcps", "--output-format", "stream-json")
_MAX_PROMPT_BYTES = 120_000  # Linux limits one argument to 131,072
_PROVIDER = "cursor"


class Cursor(Driver):
    """Drives one run of Cursor's agent."""

    info = RUNTIMES["cursor"]

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._key = environ.get(KEY, "")

    def launch(self, assignment: Assignment, access: DoorAccess, url: str, home: Path, model: str) -> Launch:
        if not self._key:
            hint = f"Create a key in Cursor's settings, then: export {KEY}=..."
            raise ModelUnusable(f"runtime cursor needs {KEY}, which is not set", hint=hint)
        check_attachments(self.info, assignment)
        first = f"{assignment.system_prompt}\n\n{message_text(assignment)}"
        text = first if self._next_message is None else self._next_message
        text = text.replace("\0", "").encode(errors="replace").decode()  # valid on a command line
        if len(text.encode()) > _MAX_PROMPT_BYTES:
            problem = f"runtime cursor: prompt and message are longer than {_MAX_PROMPT_BYTES:,} bytes"
            raise RuntimeFailed(problem, hint="Let the worker read long input with a tool, or use another runtime.")
        servers = {
            name: {"url": f"{url}/mcp/{name}/", "headers": {"Authorization": f"Bearer {access.token}"}}
            for name in access.servers
        }
        named = ("--model", model) if assignment.model.startswith(f"{_PROVIDER}:") and model else ()
        further = ("--resume", self._session) if self._next_message is not None else ()
        return Launch(
            argv=(*_FLAGS, *named, *further, text.lstrip().removeprefix("-") or " "),
            env={KEY: self._key},
            files={"work/.cursor/mcp.json": json.dumps({"mcpServers": servers})},
        )

    def read(self, line: Mapping[str, Any]) -> TurnEnd | None:
        match line:
            case {"type": "system", "subtype": "init", "session_id": str(session)}:
                self._session = session
            case {"type": "result", "is_error": True}:
                return TurnEnd(
                    RuntimeFailed(f"Cursor failed: {line.get('result') or line.get('subtype') or 'no reason given'}")
                )
            case {"type": "result", "result": str(text)}:
                return TurnEnd(text=text)
            case _:
                pass
        return None

    def exit_error(self, manner: str) -> GuildError | None:
        text = f"Cursor {manner}. The run cannot continue, because Cursor would repeat its tool calls"
        return RuntimeFailed(
            text, hint="Check the tool calls of the run with `guild log`, then start a new run for the rest."
        )

    def tool_name(self, server: str, tool: str) -> str:
        return f"{server}_{tool}"  # no model call is visible
