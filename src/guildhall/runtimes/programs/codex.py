"""Driver of the Codex CLI: starts `codex exec` with settings, a model description and a home made for the run.

The description declares a model without tools, so that Codex offers almost none of its own tools.
A further user message starts a new process in the existing home.
Does not start the process: `process` does. Does not decide the output: `runtime` does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from guildhall.core.errors import GuildError, RuntimeFailed, RuntimeToolless
from guildhall.runtimes.catalog import RUNTIMES
from guildhall.runtimes.programs.process import Launch
from guildhall.runtimes.programs.runtime import Driver, TurnEnd, check_attachments, message_text, normal_name

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.runtimes.model import Assignment, DoorAccess

_TOKEN = "GUILDHALL_TOKEN"
_ANY_MODEL = "gpt-5.5"  # for scripts and recordings
_PROMPT = "prompt.md"
_UNLIMITED = 1_000_000_000  # tokens, bytes or milliseconds: the doors have the limits
_FLAGS = ("--json", "--skip-git-repo-check", "--ignore-rules")
_IMAGES = {"image/png": "png", "image/jpeg": "jpg", "image/gif": "gif", "image/webp": "webp"}
_TOOLS_UNREACHED = "required MCP servers failed to initialize"
_DISABLED_FEATURES = (
    "api_key_model_discovery", "apps", "auth_elicitation", "browser_use", "browser_use_external", "code_mode_host",
    "computer_use", "daemon_auto_start", "enable_request_compression", "fast_mode", "goals", "guardian_approval",
    "hooks", "image_generation", "in_app_browser", "in_app_chat", "in_app_updates", "in_app_voice", "mentions_v2",
    "multi_agent", "plugin_discovery_prefetch", "plugin_sharing", "plugins", "remote_plugin", "shell_snapshot",
    "shell_tool", "skill_mcp_dependency_install", "skill_search", "sleep_tool", "tool_call_mcp_elicitation",
    "tool_suggest", "unbounded_connection_retries", "unified_exec", "view_image", "workspace_dependencies",
)  # fmt: skip


class Codex(Driver):
    """Drives one run of Codex."""

    info = RUNTIMES["codex"]

    def launch(self, assignment: Assignment, access: DoorAccess, url: str, home: Path, model: str) -> Launch:
        check_attachments(self.info, assignment, _IMAGES)
        name = model or _ANY_MODEL
        prompt = {"model_instructions_file": str(home / _PROMPT)} if assignment.system_prompt.strip() else {}
        files = [file for file in assignment.attachments if not file.is_text]
        images = {f"{index}.{_IMAGES[file.media_type]}": file.data for index, file in enumerate(files, 1)}
        if self._next_message is None:
            argv = ["exec", *_FLAGS, *(f"--image={image}" for image in images), "-"]
            text = message_text(assignment)
        else:
            argv, text = ["exec", "resume", *_FLAGS, self._session, "-"], self._next_message
        return Launch(
            argv=tuple(argv),
            env={"CODEX_HOME": str(home / "codex"), _TOKEN: access.token},
            files={
                "codex/config.toml": _encode_toml(
                    {**_settings(access, url, home, name), **prompt, **_effort(assignment)}
                ),
                "models.json": json.dumps({"models": [_describe_model(name)]}),
                _PROMPT: assignment.system_prompt,
                **{f"work/{image}": data for image, data in images.items()},
            },
            stdin=text.encode(errors="replace"),
        )

    def read(self, line: Mapping[str, Any]) -> TurnEnd | None:
        match line:
            case {"type": "thread.started", "thread_id": str(thread)}:
                self._session = thread
            case {"type": "turn.completed"}:
                return TurnEnd()
            case {"type": "turn.failed", "error": {"message": str(reason)}}:
                return TurnEnd(RuntimeFailed(f"Codex failed: {reason}"))
            case {"type": "turn.failed"}:
                return TurnEnd(RuntimeFailed("Codex failed: no reason given"))
            case _:
                pass
        return None

    def exit_error(self, manner: str) -> GuildError | None:
        if _TOOLS_UNREACHED in manner:
            return RuntimeToolless(f"Codex is not connected to the run's tools: it {manner}")
        return None

    def tool_name(self, server: str, tool: str) -> str:
        return f"mcp__{normal_name(server)}__{normal_name(tool)}".replace("-", "_")


def _settings(access: DoorAccess, url: str, home: Path, model: str) -> dict[str, Any]:
    """Return all settings that Codex would otherwise read from the user's configuration."""
    provider = {
        "name": "guildhall",
        "base_url": f"{url}/llm/openai/v1",
        "env_key": _TOKEN,
        "wire_api": "responses",
        "request_max_retries": 0,  # the door retries
        "stream_max_retries": 0,
        "stream_idle_timeout_ms": _UNLIMITED,
    }
    server = {
        "bearer_token_env_var": _TOKEN,
        "default_tools_approval_mode": "approve",  # the tool door decides
        "required": True,
        "startup_timeout_sec": 30,
        "supports_parallel_tool_calls": True,
        "tool_timeout_sec": _UNLIMITED // 1000,
    }
    return {
        "model": model,
        "model_catalog_json": str(home / "models.json"),
        "model_provider": "guildhall",
        "model_reasoning_summary": "none",
        "model_providers": {"guildhall": provider},
        "mcp_servers": {normal_name(name): {"url": f"{url}/mcp/{name}/", **server} for name in access.servers},
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
        "features": dict.fromkeys(_DISABLED_FEATURES, False),
    }


def _effort(assignment: Assignment) -> dict[str, str]:
    level = assignment.settings.get("thinking")
    return {} if level is None else {"model_reasoning_effort": "none" if level == "off" else level}


def _describe_model(model: str) -> dict[str, Any]:
    """Return a catalog entry for a model without tools, truncation and compaction."""
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
        "truncation_policy": {"mode": "bytes", "limit": _UNLIMITED},
        "context_window": _UNLIMITED,
        "max_context_window": _UNLIMITED,
        "effective_context_window_percent": 100,
        "auto_compact_token_limit": None,
    }


def _encode_toml(table: Mapping[str, Any]) -> str:
    """Return a table in TOML with inner tables on one line each, so that their order does not matter."""
    return "".join(f"{json.dumps(name)} = {_toml_value(value)}\n" for name, value in table.items())


def _toml_value(value: Any) -> str:
    if isinstance(value, dict):
        table = cast("dict[str, Any]", value)
        return "{" + ", ".join(f"{json.dumps(name)} = {_toml_value(inner)}" for name, inner in table.items()) + "}"
    return json.dumps(value)  # JSON and TOML write keys, text, numbers and booleans alike
