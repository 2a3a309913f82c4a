"""Credentials of model providers: the variables of keys and addresses, and the token of a Claude login.

A request can bring variables from the caller's terminal.
Does not redact texts: `core.redaction` does.

Invariant: a key or token never goes to an address that another party set. If a request brings any variable of a
provider, the hall's own variables of that provider are not used.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from guildhall.core.errors import KeyRefused, ModelUnusable

if TYPE_CHECKING:
    from guildhall.core.clock import Clock


# The variables of each provider's key. Hints name the first one.
KEY_VARIABLES: Mapping[str, tuple[str, ...]] = {
    "anthropic": ("ANTHROPIC_API_KEY",),
    "openai": ("OPENAI_API_KEY",),
    "openai-chat": ("OPENAI_API_KEY",),
    "openai-responses": ("OPENAI_API_KEY",),
    "google": ("GOOGLE_API_KEY", "GEMINI_API_KEY"),
    "groq": ("GROQ_API_KEY",),
    "mistral": ("MISTRAL_API_KEY",),
    "cohere": ("CO_API_KEY",),
    "xai": ("XAI_API_KEY",),
    "deepseek": ("DEEPSEEK_API_KEY",),
    "openrouter": ("OPENROUTER_API_KEY",),
    "together": ("TOGETHER_API_KEY",),
    "fireworks": ("FIREWORKS_API_KEY",),
    "cerebras": ("CEREBRAS_API_KEY",),
    "moonshotai": ("MOONSHOTAI_API_KEY",),
    "alibaba": ("ALIBABA_API_KEY", "DASHSCOPE_API_KEY"),
    "huggingface": ("HF_TOKEN",),
    "nebius": ("NEBIUS_API_KEY",),
    "ovhcloud": ("OVHCLOUD_API_KEY",),
    "sambanova": ("SAMBANOVA_API_KEY",),
    "vercel": ("VERCEL_AI_GATEWAY_API_KEY", "VERCEL_OIDC_TOKEN"),
    "heroku": ("HEROKU_INFERENCE_KEY",),
    "meta": ("META_API_KEY",),
    "crusoe": ("CRUSOE_API_KEY",),
    "zai": ("ZAI_API_KEY",),
    "github": ("GITHUB_API_KEY",),
    "azure": ("AZURE_OPENAI_API_KEY",),
    "azure-responses": ("AZURE_OPENAI_API_KEY",),
    "cursor": ("CURSOR_API_KEY",),
}
# The variables of provider URLs. A server with its own URL may need no key.
URL_VARIABLES: Mapping[str, str] = {
    "anthropic": "ANTHROPIC_BASE_URL",
    "openai": "OPENAI_BASE_URL",
    "openai-chat": "OPENAI_BASE_URL",
    "openai-responses": "OPENAI_BASE_URL",
    "ollama": "OLLAMA_BASE_URL",
    "vllm": "VLLM_BASE_URL",
}

LOGIN_VARIABLE = "CLAUDE_CODE_OAUTH_TOKEN"  # the token of a Claude login, which replaces the Anthropic key
_SECRET_VARIABLES = frozenset({LOGIN_VARIABLE, *(name for names in KEY_VARIABLES.values() for name in names)})
SEARCH_VARIABLES = ("TAVILY_API_KEY", "BRAVE_API_KEY")  # used by `guildhall.tools.builtin.web_search`
# The paths of the programs in `guildhall.runtimes.catalog`.
PROGRAM_VARIABLES = ("GUILDHALL_CLAUDE", "GUILDHALL_CODEX", "GUILDHALL_OPENCODE", "GUILDHALL_CURSOR")


def forwarded_variables() -> frozenset[str]:
    """Return the variables of providers and of runtime programs that a request carries to the hall."""
    return frozenset({*PROGRAM_VARIABLES, *SEARCH_VARIABLES, *URL_VARIABLES.values(), *_SECRET_VARIABLES})


def merge_environ(own: Mapping[str, str], forwarded: Mapping[str, str]) -> dict[str, str]:
    """Return the hall's variables, overridden by the variables of a request.

    If a request carries any variable of a provider, all of the hall's variables of that provider are dropped. Otherwise
    a key could go to an address that another party set.
    """
    variables = {provider: {*KEY_VARIABLES.get(provider, ()), url} for provider, url in URL_VARIABLES.items()}
    variables = {**{provider: set(names) for provider, names in KEY_VARIABLES.items()}, **variables}
    variables["anthropic"].add(LOGIN_VARIABLE)
    replaced = {name for names in variables.values() if names & forwarded.keys() for name in names}
    return {**{name: value for name, value in own.items() if name not in replaced}, **forwarded}


def secret_values(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the secret values that are set, each with the name of its variable."""
    return {value: name for name in sorted(_SECRET_VARIABLES) if (value := environ.get(name, "").strip())}


def find_key_variable(provider: str, environ: Mapping[str, str]) -> str | None:
    """Return the variable that holds the key of a provider, or None if no key is set."""
    return next((name for name in KEY_VARIABLES.get(provider, ()) if environ.get(name, "").strip()), None)


LOGIN_RUNTIME = "claude"  # the only runtime that can use a login
LOGIN_BETA = "oauth-2025-04-20"  # the required value of `anthropic-beta` with a login
_LOGIN_FILE = ".credentials.json"
_LOGIN_HINT = "Run `claude` to log in again, or set CLAUDE_CODE_OAUTH_TOKEN to the token of `claude setup-token`."
_MAX_LOGIN_FILE_BYTES = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Login:
    """A Claude login: a token in a variable, or in the credentials file of Claude Code."""

    value: str | None = field(default=None, repr=False)
    file: Path | None = None

    @property
    def location(self) -> str:
        return LOGIN_VARIABLE if self.value else str(self.file)

    def read_token(self, clock: Clock) -> str:
        """Return the current token. Raise KeyRefused if it has expired, ModelUnusable if it is missing."""
        if self.value:
            return self.value
        login = _read_login(self.file) if self.file else {}
        token, expiry_ms = login.get("accessToken"), login.get("expiresAt")
        if not isinstance(token, str) or not token.strip():
            raise ModelUnusable(f"no Claude login in {self.location}", hint=_LOGIN_HINT)
        if isinstance(expiry_ms, int | float) and expiry_ms / 1000 <= clock.now().timestamp():
            raise KeyRefused(f"the Claude login in {self.location} has expired", hint=_LOGIN_HINT)
        return token.strip()


def find_login(environ: Mapping[str, str]) -> Login | None:
    """Return the login in the variable, or else the login of Claude Code, or None.

    The token of the file is only for Anthropic's own address. If another address is set, only the variable is used.
    """
    if value := environ.get(LOGIN_VARIABLE, "").strip():
        return Login(value=value)
    if environ.get("ANTHROPIC_BASE_URL"):
        return None
    folder = environ.get("CLAUDE_CONFIG_DIR") or (f"{home}/.claude" if (home := environ.get("HOME")) else "")
    file = Path(folder) / _LOGIN_FILE
    return Login(file=file) if folder and file.is_file() else None


def _read_login(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as opened:
            content: Any = json.loads(opened.read(_MAX_LOGIN_FILE_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    login: Any = cast("dict[str, Any]", content).get("claudeAiOauth") if isinstance(content, dict) else None
    return cast("dict[str, Any]", login) if isinstance(login, dict) else {}
