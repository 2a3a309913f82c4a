"""Credentials of model providers: the variables of keys and addresses, and the token of a Claude login.

A request can bring variables from the caller's terminal.
Does not redact texts: `core.redaction` does.

Invariant: a key or token never goes to an address that another party set. If a request brings any variable of a
provider, the hall's own variables of that provider are not used.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from guildhall.core.errors import KeyRefused, ModelUnusable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from guildhall.core.clock import Clock


# provider: its key's variables, the first one being the one to recommend
KEYS: Mapping[str, tuple[str, ...]] = {
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
# Providers of one's own: no key is needed, but their address is.
ADDRESSES: Mapping[str, str] = {
    "anthropic": "ANTHROPIC_BASE_URL",
    "openai": "OPENAI_BASE_URL",
    "openai-chat": "OPENAI_BASE_URL",
    "openai-responses": "OPENAI_BASE_URL",
    "ollama": "OLLAMA_BASE_URL",
    "vllm": "VLLM_BASE_URL",
}

LOGIN = "CLAUDE_CODE_OAUTH_TOKEN"  # the token of a person's login with Claude, which replaces Anthropic's key
_SECRETS = frozenset({LOGIN, *(name for names in KEYS.values() for name in names)})
SEARCH = ("TAVILY_API_KEY", "BRAVE_API_KEY")  # as `guildhall.tools.builtin.web_search` knows them
# The paths of programs, as `guildhall.runtimes.catalog` knows them.
PROGRAMS = ("GUILDHALL_CLAUDE", "GUILDHALL_CODEX", "GUILDHALL_OPENCODE", "GUILDHALL_CURSOR")


def travelling() -> frozenset[str]:
    """Return the variables of providers, and of programs that execute runs, that a request brings along."""
    return frozenset({*PROGRAMS, *SEARCH, *ADDRESSES.values(), *_SECRETS})


def joined(own: Mapping[str, str], brought: Mapping[str, str]) -> dict[str, str]:
    """The hall's own variables and those that a request has brought, which come first.

    Whoever brings one of a provider's variables uses none of the hall's for it: a key must not go to an address that
    somebody else has set.
    """
    theirs = {provider: {*KEYS.get(provider, ()), ADDRESSES.get(provider, "")} for provider in {*KEYS, *ADDRESSES}}
    theirs["anthropic"].add(LOGIN)
    replaced = {name for names in theirs.values() if names & brought.keys() for name in names}
    return {**{name: value for name, value in own.items() if name not in replaced}, **brought}


def secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the values that must not be shown, each with the name of its variable."""
    return {value: name for name in sorted(_SECRETS) if (value := environ.get(name, "").strip())}


def variable_with_key(provider: str, environ: Mapping[str, str]) -> str | None:
    """The variable that holds the provider's key, if one is set."""
    return next((name for name in KEYS.get(provider, ()) if environ.get(name, "").strip()), None)


WITH_LOGIN = "claude"  # the runtime whose program can speak with one
BETA = "oauth-2025-04-20"  # what a request with a login has to say in `anthropic-beta`
_FILE = ".credentials.json"
_AGAIN = "Log in again: `claude setup-token` gives a token for CLAUDE_CODE_OAUTH_TOKEN, `claude` renews the login."
_LARGEST = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Login:
    """Where the token of a login is: in a variable, or in the file that Claude Code keeps."""

    value: str | None = field(default=None, repr=False)
    file: Path | None = None

    @property
    def place(self) -> str:
        return LOGIN if self.value else str(self.file)

    def token(self, clock: Clock) -> str:
        """The token as it is now. Raises KeyRefused where it has run out, ModelUnusable where there is none."""
        if self.value:
            return self.value
        told = _read(self.file) if self.file else {}
        token, until = told.get("accessToken"), told.get("expiresAt")
        if not isinstance(token, str) or not token.strip():
            raise ModelUnusable(f"there is no login with Claude in {self.place}", hint=_AGAIN)
        if isinstance(until, int | float) and until / 1000 <= clock.now().timestamp():
            raise KeyRefused(f"the login with Claude in {self.place} has run out", hint=_AGAIN)
        return token.strip()


def login_of(environ: Mapping[str, str]) -> Login | None:
    """The login that there is: by a variable, else the one that Claude Code keeps.

    The file's goes to Anthropic alone: with an address of somebody's own, a token is used only if it is set beside it.
    """
    if value := environ.get(LOGIN, "").strip():
        return Login(value=value)
    if environ.get("ANTHROPIC_BASE_URL"):
        return None
    folder = environ.get("CLAUDE_CONFIG_DIR") or (f"{home}/.claude" if (home := environ.get("HOME")) else "")
    file = Path(folder) / _FILE
    return Login(file=file) if folder and file.is_file() else None


def _read(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as opened:
            told: Any = json.loads(opened.read(_LARGEST))
    except (OSError, ValueError, RecursionError):
        return {}
    inner: Any = cast("dict[str, Any]", told).get("claudeAiOauth") if isinstance(told, dict) else None
    return cast("dict[str, Any]", inner) if isinstance(inner, dict) else {}
