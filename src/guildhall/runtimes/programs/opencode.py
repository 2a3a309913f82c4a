"""Driver of OpenCode: starts `opencode run` with settings and a home made for the run.

The settings deny all tools of OpenCode to its agent, so that it offers only the tools of the run.
A further user message starts a new process in the existing home.
Does not start the process: `process` does. Does not decide the output: `runtime` does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from guildhall.core.errors import RuntimeFailed
from guildhall.runtimes.catalog import RUNTIMES
from guildhall.runtimes.programs.process import Launch
from guildhall.runtimes.programs.runtime import Driver, TurnEnd, check_attachments, message_text, normal_name

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.runtimes.model import Assignment, DoorAccess

_NAME = "guildhall"  # of the provider and of the agent
_ANY_MODEL = "scripted"  # for scripts and recordings
_FOREVER_MS = 2_000_000_000  # the doors limit the time of calls
_CONTEXT_TOKENS, _OUTPUT_TOKENS = 1_000_000_000, 32_000
_INVALID_TOOL = "invalid"  # never offered: OpenCode uses it to report calls of unknown tools
_SUBSTITUTION = re.compile(r"\{(?=env:|file:)")  # OpenCode replaces these in its settings
_PLUGIN = "@opencode-ai/plugin"
_CATALOGUE = "models.json"  # an empty catalog, because it reads hundreds of models at each start
# The package and the path of the model door, by provider.
_PACKAGES = {"anthropic": ("@ai-sdk/anthropic", "anthropic"), "openai": ("@ai-sdk/openai", "openai")}
_OTHER_PACKAGE = ("@ai-sdk/openai-compatible", "openai")
_DISABLED = (
    "OPENCODE_DISABLE_AUTOCOMPACT", "OPENCODE_DISABLE_AUTOUPDATE", "OPENCODE_DISABLE_CLAUDE_CODE",
    "OPENCODE_DISABLE_DEFAULT_PLUGINS", "OPENCODE_DISABLE_EXTERNAL_SKILLS", "OPENCODE_DISABLE_LSP_DOWNLOAD",
    "OPENCODE_DISABLE_MODELS_FETCH", "OPENCODE_DISABLE_PROJECT_CONFIG", "OPENCODE_DISABLE_PRUNE",
    "OPENCODE_DISABLE_SHARE", "OPENCODE_DISABLE_TERMINAL_TITLE", "OPENCODE_EXPERIMENTAL_DISABLE_FILEWATCHER",
)  # fmt: skip


class OpenCode(Driver):
    """Drives one run of OpenCode."""

    info = RUNTIMES["opencode"]

    def launch(self, assignment: Assignment, access: DoorAccess, url: str, home: Path, model: str) -> Launch:
        check_attachments(self.info, assignment)
        name = model or _ANY_MODEL
        argv = ["run", "--format", "json", "--auto", "--pure", "--agent", _NAME, "--model", f"{_NAME}/{name}"]
        argv += ["--title", "run"]  # otherwise it asks the model for a title
        argv += ["--session", self._session] if self._next_message is not None else []
        text = message_text(assignment) if self._next_message is None else self._next_message
        settings = ".config/opencode"
        configured = json.dumps(_settings(assignment, access, url, name))
        known: dict[str, Any] = {"dependencies": {_PLUGIN: "*"}}  # as if it were installed
        return Launch(
            argv=tuple(argv),
            env={**dict.fromkeys(_DISABLED, "1"), "OPENCODE_MODELS_PATH": str(home / _CATALOGUE)},
            files={
                _CATALOGUE: "{}",
                f"{settings}/opencode.json": _SUBSTITUTION.sub(r"\\u007b", configured),
                f"{settings}/package.json": json.dumps(known),
                f"{settings}/package-lock.json": json.dumps({"packages": {"": known}}),
                f"{settings}/node_modules/.keep": "",
            },
            stdin=text.encode(errors="replace"),
        )

    def read(self, line: Mapping[str, Any]) -> TurnEnd | None:
        match line:
            case {"type": "error"}:
                return TurnEnd(RuntimeFailed(f"OpenCode failed: {_error_text(line.get('error'))}"))
            case {"type": "step_finish", "sessionID": str(session), "part": {"reason": reason}}:
                self._session = session
                return None if reason == "tool-calls" else TurnEnd()
            case _:
                return None

    def tool_name(self, server: str, tool: str) -> str:
        return f"{normal_name(server)}_{normal_name(tool)}"


def _error_text(error: Any) -> str:
    match error:
        case {"data": {"message": str(message)}} | {"message": str(message)}:
            return message
        case _:
            return json.dumps(error)


def _settings(assignment: Assignment, access: DoorAccess, url: str, model: str) -> dict[str, Any]:
    """Return all settings that OpenCode would otherwise read from the user's configuration."""
    package, path = _PACKAGES.get(assignment.model.partition(":")[0], _OTHER_PACKAGE)
    options = {"baseURL": f"{url}/llm/{path}/v1", "apiKey": access.token, "timeout": False}
    limit = {"context": _CONTEXT_TOKENS, "output": _OUTPUT_TOKENS}
    described = {
        "name": model,
        "tool_call": True,
        "reasoning": False,
        "attachment": False,
        "temperature": True,
        "limit": limit,
    }
    sampling = {name: assignment.settings[name] for name in ("temperature", "top_p") if name in assignment.settings}
    allowed = {f"{normal_name(server)}_*": "allow" for server in access.servers}
    server = {
        "type": "remote",
        "enabled": True,
        "oauth": False,
        "headers": {"Authorization": f"Bearer {access.token}"},
        "timeout": _FOREVER_MS,
    }
    agent = {
        "mode": "primary",
        "prompt": assignment.system_prompt,
        "model": f"{_NAME}/{model}",
        "permission": {"*": "deny", _INVALID_TOOL: "allow", **allowed},
        **sampling,
    }
    return {
        "model": f"{_NAME}/{model}",
        "small_model": f"{_NAME}/{model}",
        "default_agent": _NAME,
        "agent": {_NAME: agent},
        "enabled_providers": [_NAME],
        "provider": {_NAME: {"npm": package, "name": _NAME, "options": options, "models": {model: described}}},
        "mcp": {normal_name(name): {**server, "url": f"{url}/mcp/{name}/"} for name in access.servers},
        "share": "disabled",
        "autoupdate": False,
        "snapshot": False,
        "formatter": False,
        "lsp": False,
        "plugin": [],
        "instructions": [],
        "compaction": {"auto": False, "prune": False},
    }
