"""Driver of the Codex CLI: starts `codex exec` with settings, a model description and a home made for the run.

The description declares a model without tools, so that Codex offers almost none of its own tools.
A further message of the user starts a new process in the existing home.
Does not start the process: `process` does. Does not decide the output: `runtime` does.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, cast

from guildhall.core.errors import GuildError, RuntimeFailed, RuntimeToolless
from guildhall.runtimes.catalog import ROWS
from guildhall.runtimes.programs.process import Launch
from guildhall.runtimes.programs.runtime import Driver, Ended, normal_name, refuse_unseen, words_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from guildhall.runtimes.model import Assignment, Entry

_TOKEN = "GUILDHALL_TOKEN"
_ANY = "gpt-5.5"  # where a script or a recording answers
_PROMPT = "prompt.md"
_LARGE = 1_000_000_000  # of tokens, bytes, milliseconds: what is too much is for the doors to say
_FLAGS = ("--json", "--skip-git-repo-check", "--ignore-rules")
_IMAGES = {"image/png": "png", "image/jpeg": "jpg", "image/gif": "gif", "image/webp": "webp"}
_TOOLLESS = "required MCP servers failed to initialize"
_OFF = (
    "api_key_model_discovery", "apps", "auth_elicitation", "browser_use", "browser_use_external", "code_mode_host",
    "computer_use", "daemon_auto_start", "enable_request_compression", "fast_mode", "goals", "guardian_approval",
    "hooks", "image_generation", "in_app_browser", "in_app_chat", "in_app_updates", "in_app_voice", "mentions_v2",
    "multi_agent", "plugin_discovery_prefetch", "plugin_sharing", "plugins", "remote_plugin", "shell_snapshot",
    "shell_tool", "skill_mcp_dependency_install", "skill_search", "sleep_tool", "tool_call_mcp_elicitation",
    "tool_suggest", "unbounded_connection_retries", "unified_exec", "view_image", "workspace_dependencies",
)  # fmt: skip


class Codex(Driver):
    """Drives one run of Codex."""

    row = ROWS["codex"]

    def launch(self, assignment: Assignment, entry: Entry, url: str, home: Path, model: str) -> Launch:
        refuse_unseen(self.row, assignment, _IMAGES)
        name = model or _ANY
        prompt = {"model_instructions_file": str(home / _PROMPT)} if assignment.system_prompt.strip() else {}
        pictures = [one for one in assignment.attachments if not one.is_text]
        images = {f"{index}.{_IMAGES[one.media_type]}": one.data for index, one in enumerate(pictures, 1)}
        if self._further is None:
            argv = ["exec", *_FLAGS, *(f"--image={image}" for image in images), "-"]
            words = words_of(assignment)
        else:
            argv, words = ["exec", "resume", *_FLAGS, self._session, "-"], self._further
        return Launch(
            argv=tuple(argv),
            env={"CODEX_HOME": str(home / "codex"), _TOKEN: entry.token},
            files={
                "codex/config.toml": _toml({**_settings(entry, url, home, name), **prompt}),
                "models.json": json.dumps({"models": [_described(name)]}),
                _PROMPT: assignment.system_prompt,
                **{f"work/{image}": data for image, data in images.items()},
            },
            stdin=words.encode(errors="replace"),
        )

    def read(self, line: Mapping[str, Any]) -> Ended | None:
        match line:
            case {"type": "thread.started", "thread_id": str(thread)}:
                self._session = thread
            case {"type": "turn.completed"}:
                return Ended()
            case {"type": "turn.failed", "error": {"message": str(said)}}:
                return Ended(RuntimeFailed(f"Codex gave up: {said}"))
            case {"type": "turn.failed"}:
                return Ended(RuntimeFailed("Codex gave up"))
            case _:
                pass
        return None

    def broke(self, manner: str) -> GuildError | None:
        if _TOOLLESS in manner:
            return RuntimeToolless(f"Codex did not reach the run's tools: it {manner}")
        return None

    def names(self, server: str, tool: str) -> str:
        return f"mcp__{_normal(server)}__{_normal(tool)}"


def _normal(name: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_]", "_", name)


def _settings(entry: Entry, url: str, home: Path, model: str) -> dict[str, Any]:
    """All that it would look for in the user's own settings."""
    provider = {
        "name": "guildhall",
        "base_url": f"{url}/llm/openai/v1",
        "env_key": _TOKEN,
        "wire_api": "responses",
        "request_max_retries": 0,  # the door has its own rule
        "stream_max_retries": 0,
        "stream_idle_timeout_ms": _LARGE,
    }
    server = {
        "bearer_token_env_var": _TOKEN,
        "default_tools_approval_mode": "approve",  # it is the tool door that asks
        "required": True,
        "startup_timeout_sec": 30,
        "supports_parallel_tool_calls": True,
        "tool_timeout_sec": _LARGE // 1000,
    }
    return {
        "model": model,
        "model_catalog_json": str(home / "models.json"),
        "model_provider": "guildhall",
        "model_reasoning_summary": "none",
        "model_providers": {"guildhall": provider},
        "mcp_servers": {normal_name(name): {"url": f"{url}/mcp/{name}/", **server} for name in entry.servers},
        "approval_policy": "never",
        "sandbox_mode": "read-only",
        "web_search": "disabled",
        "check_for_update_on_startup": False,
        "project_doc_max_bytes": 0,
        "include_apps_instructions": False,
        "include_collaboration_mode_instructions": False,
        "include_environment_context": False,
        "include_permissions_instructions": False,
        "analytics": {"enabled": False},
        "feedback": {"enabled": False},
        "history": {"persistence": "none"},
        "skills": {"include_instructions": False, "bundled": {"enabled": False}},
        "tools": {"experimental_request_user_input": {"enabled": False}},
        "features": dict.fromkeys(_OFF, False),
    }


def _described(model: str) -> dict[str, Any]:
    """A model as its own catalogue would describe it: it has no tools of its own, and nothing is cut or summed up."""
    return {
        "slug": model,
        "display_name": model,
        "description": None,
        "base_instructions": "",
        "supported_in_api": True,
        "visibility": "list",
        "priority": 1,
        "availability_nux": None,
        "upgrade": None,
        "model_messages": None,
        "default_reasoning_level": None,
        "supported_reasoning_levels": [],
        "supports_reasoning_summaries": False,
        "support_verbosity": False,
        "default_verbosity": None,
        "shell_type": "disabled",
        "apply_patch_tool_type": None,
        "supports_search_tool": False,
        "supports_parallel_tool_calls": True,
        "experimental_supported_tools": [],
        "supports_image_detail_original": False,
        "input_modalities": ["text", "image"],
        "truncation_policy": {"mode": "bytes", "limit": _LARGE},
        "context_window": _LARGE,
        "max_context_window": _LARGE,
        "effective_context_window_percent": 100,
        "auto_compact_token_limit": None,
    }


def _toml(table: Mapping[str, Any]) -> str:
    """Return a table of TOML with inner tables on one line each, so that their order does not matter."""
    return "".join(f"{json.dumps(name)} = {_value(value)}\n" for name, value in table.items())


def _value(value: Any) -> str:
    if isinstance(value, dict):
        table = cast("dict[str, Any]", value)
        return "{" + ", ".join(f"{json.dumps(name)} = {_value(inner)}" for name, inner in table.items()) + "}"
    return json.dumps(value)  # JSON and TOML write keys, text, numbers and booleans alike
