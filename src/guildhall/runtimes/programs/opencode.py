"""Driver of OpenCode: starts `opencode run` with settings and a home made for the run.

The settings deny all tools of OpenCode to its agent, so that it offers only the tools of the run.
A further message of the user starts a new process in the existing home.
Does not start the process: `process` does. Does not decide the output: `runtime` does.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from guildhall.core.errors import RuntimeFailed
from guildhall.runtimes.catalog import ROWS
from guildhall.runtimes.programs.process import Launch
from guildhall.runtimes.programs.runtime import Driver, Ended, normal_name, refuse_unseen, words_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from guildhall.runtimes.model import Assignment, Entry

_US = "guildhall"  # as a provider, and as an agent
_ANY = "scripted"  # where a script or a recording answers
_FOR_EVER = 2_000_000_000  # milliseconds: how long a call takes is for the doors to say
_CONTEXT, _OUTPUT = 1_000_000_000, 32_000  # tokens
_UNKNOWN = "invalid"  # a tool that is never offered: with it a call of one that is not there is told to the model
_REPLACED = re.compile(r"\{(?=env:|file:)")  # in the text of the settings it replaces what begins so
_PLUGIN = "@opencode-ai/plugin"
_CATALOGUE = "models.json"  # of all models: it has hundreds, reads them at each start, and needs none
# How its packages ask a model, and where; by provider.
_ASKS = {"anthropic": ("@ai-sdk/anthropic", "anthropic"), "openai": ("@ai-sdk/openai", "openai")}
_OTHERS = ("@ai-sdk/openai-compatible", "openai")
_OFF = (
    "OPENCODE_DISABLE_AUTOCOMPACT",
    "OPENCODE_DISABLE_AUTOUPDATE",
    "OPENCODE_DISABLE_CLAUDE_CODE",
    "OPENCODE_DISABLE_DEFAULT_PLUGINS",
    "OPENCODE_DISABLE_EXTERNAL_SKILLS",
    "OPENCODE_DISABLE_LSP_DOWNLOAD",
    "OPENCODE_DISABLE_MODELS_FETCH",
    "OPENCODE_DISABLE_PROJECT_CONFIG",
    "OPENCODE_DISABLE_PRUNE",
    "OPENCODE_DISABLE_SHARE",
    "OPENCODE_DISABLE_TERMINAL_TITLE",
    "OPENCODE_EXPERIMENTAL_DISABLE_FILEWATCHER",
)


class OpenCode(Driver):
    """Drives one run of OpenCode."""

    row = ROWS["opencode"]

    def launch(self, assignment: Assignment, entry: Entry, url: str, home: Path, model: str) -> Launch:
        refuse_unseen(self.row, assignment)
        name = model or _ANY
        argv = ["run", "--format", "json", "--auto", "--pure", "--agent", _US, "--model", f"{_US}/{name}"]
        argv += ["--title", "run"]  # or its model would be asked for one
        argv += ["--session", self._session] if self._further is not None else []
        settings = ".config/opencode"
        configured = json.dumps(_settings(assignment, entry, url, name))
        known: dict[str, Any] = {"dependencies": {_PLUGIN: "*"}}  # as if it had been fetched already
        return Launch(
            argv=tuple(argv),
            env={**dict.fromkeys(_OFF, "1"), "OPENCODE_MODELS_PATH": str(home / _CATALOGUE)},
            files={
                _CATALOGUE: "{}",
                f"{settings}/opencode.json": _REPLACED.sub(r"\\u007b", configured),
                f"{settings}/package.json": json.dumps(known),
                f"{settings}/package-lock.json": json.dumps({"packages": {"": known}}),
                f"{settings}/node_modules/.keep": "",
            },
            stdin=(words_of(assignment) if self._further is None else self._further).encode(errors="replace"),
        )

    def read(self, line: Mapping[str, Any]) -> Ended | None:
        match line:
            case {"type": "error"}:
                return Ended(RuntimeFailed(f"OpenCode gave up: {_said(line.get('error'))}"))
            case {"type": "step_finish", "sessionID": str(session), "part": {"reason": reason}}:
                self._session = session
                return None if reason == "tool-calls" else Ended()
            case _:
                return None

    def names(self, server: str, tool: str) -> str:
        return f"{normal_name(server)}_{normal_name(tool)}"


def _said(error: Any) -> str:
    match error:
        case {"data": {"message": str(message)}} | {"message": str(message)}:
            return message
        case _:
            return json.dumps(error)


def _settings(assignment: Assignment, entry: Entry, url: str, model: str) -> dict[str, Any]:
    """All that it would look for in the user's own settings."""
    package, path = _ASKS.get(assignment.model.partition(":")[0], _OTHERS)
    options = {"baseURL": f"{url}/llm/{path}/v1", "apiKey": entry.token, "timeout": False}
    limit = {"context": _CONTEXT, "output": _OUTPUT}
    described = {"name": model, "tool_call": True, "reasoning": False, "attachment": False, "limit": limit}
    allowed = {f"{normal_name(server)}_*": "allow" for server in entry.servers}
    server = {
        "type": "remote",
        "enabled": True,
        "oauth": False,
        "headers": {"Authorization": f"Bearer {entry.token}"},
        "timeout": _FOR_EVER,
    }
    agent = {
        "mode": "primary",
        "prompt": assignment.system_prompt,
        "model": f"{_US}/{model}",
        "permission": {"*": "deny", _UNKNOWN: "allow", **allowed},
    }
    return {
        "model": f"{_US}/{model}",
        "small_model": f"{_US}/{model}",
        "default_agent": _US,
        "agent": {_US: agent},
        "enabled_providers": [_US],
        "provider": {_US: {"npm": package, "name": _US, "options": options, "models": {model: described}}},
        "mcp": {normal_name(name): {**server, "url": f"{url}/mcp/{name}/"} for name in entry.servers},
        "share": "disabled",
        "autoupdate": False,
        "snapshot": False,
        "formatter": False,
        "lsp": False,
        "plugin": [],
        "instructions": [],
        "compaction": {"auto": False, "prune": False},
    }
