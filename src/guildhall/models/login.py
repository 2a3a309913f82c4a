"""A person's login with Claude, in the place of a key: where its token is, and whether it still holds.

It is read anew for each request, because Claude Code renews it by itself, and never written, renewed or handed on: the
program that a run starts holds the token of its run, and the hall puts this one in its place (docs/adr/023).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from guildhall.core.errors import KeyRefused, ModelUnusable
from guildhall.models.keys import LOGIN

if TYPE_CHECKING:
    from collections.abc import Mapping

    from guildhall.core.clock import Clock

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
