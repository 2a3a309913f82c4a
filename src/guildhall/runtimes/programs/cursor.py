"""Driver of Cursor's agent: starts it with the user's key and the run's MCP servers, and reads its final text.

Cursor calls its models itself, over the network. The model door sees no call, and the output is the text that Cursor
reports. Prompt and message are on the command line, with at most 120,000 bytes.
Does not restart after a crash: completed tool calls would be repeated.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from guildhall.core.errors import GuildError, ModelUnusable, RuntimeFailed
from guildhall.runtimes.catalog import ROWS
from guildhall.runtimes.programs.process import Launch
from guildhall.runtimes.programs.runtime import Driver, Ended, refuse_unseen, words_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from guildhall.runtimes.model import Assignment, Entry

KEY = "CURSOR_API_KEY"
_FLAGS = ("-p", "--force", "--approve-mcps", "--output-format", "stream-json")
_LONGEST = 120_000  # bytes: of one word on a command line Linux takes 131,072
_PROVIDER = "cursor"


class Cursor(Driver):
    """Drives one run of Cursor's agent."""

    row = ROWS["cursor"]

    def __init__(self, environ: Mapping[str, str]) -> None:
        """`environ`: where the person's key is."""
        self._key = environ.get(KEY, "")

    def launch(self, assignment: Assignment, entry: Entry, url: str, home: Path, model: str) -> Launch:
        if not self._key:
            hint = f"Make a key in Cursor's settings and put it into the environment: export {KEY}=..."
            raise ModelUnusable(f"runtime cursor: there is no {KEY}, and Cursor asks its models itself", hint=hint)
        refuse_unseen(self.row, assignment)
        words = f"{assignment.system_prompt}\n\n{words_of(assignment)}" if self._further is None else self._further
        words = words.replace("\0", "").encode(errors="replace").decode()  # a command line takes nothing else
        if len(words.encode()) > _LONGEST:
            said = f"runtime cursor: Cursor takes {_LONGEST:,} bytes of prompt and message, and these are more"
            raise RuntimeFailed(said, hint="Let the worker read what is long with a tool, or choose another runtime.")
        servers = {
            name: {"url": f"{url}/mcp/{name}/", "headers": {"Authorization": f"Bearer {entry.token}"}}
            for name in entry.servers
        }
        named = ("--model", model) if assignment.model.startswith(f"{_PROVIDER}:") and model else ()
        further = ("--resume", self._session) if self._further is not None else ()
        return Launch(
            argv=(*_FLAGS, *named, *further, words.lstrip().removeprefix("-") or " "),
            env={KEY: self._key},
            files={"work/.cursor/mcp.json": json.dumps({"mcpServers": servers})},
        )

    def read(self, line: Mapping[str, Any]) -> Ended | None:
        match line:
            case {"type": "system", "subtype": "init", "session_id": str(session)}:
                self._session = session
            case {"type": "result", "is_error": True}:
                return Ended(RuntimeFailed(f"Cursor gave up: {line.get('result') or line.get('subtype')}"))
            case {"type": "result", "result": str(text)}:
                return Ended(text=text)
            case _:
                pass
        return None

    def broke(self, manner: str) -> GuildError | None:
        said = (
            f"Cursor {manner}. It is not started again by itself: what it has done with its tools would be done twice"
        )
        return RuntimeFailed(said, hint="See what it did (`guild log`), then hand the rest to a new run.")

    def names(self, server: str, tool: str) -> str:
        return f"{server}_{tool}"  # its models are never seen
