"""The two programs that take work outward as the person would: `git push` and `gh`.

They have the person's own environment, because they act for the person: where their configuration, their agent for
keys and their login are. Nothing else that the hall starts has it, and no worker ever does.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from guildhall.core.errors import GuildError
from guildhall.core.redaction import Redactor

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_PATIENCE = 120.0  # seconds
_SAID = 2_000  # characters of what a program said that an error shows
# Where the person's things are, how they are known to others, and how other machines are reached.
_THEIRS = frozenset({
    "PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "SSH_AUTH_SOCK", "SSH_AGENT_PID",
    "GH_TOKEN", "GITHUB_TOKEN", "GH_ENTERPRISE_TOKEN", "GITHUB_ENTERPRISE_TOKEN", "GH_HOST", "GH_CONFIG_DIR",
    "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR",
    "DBUS_SESSION_BUS_ADDRESS", "SSL_CERT_FILE", "SSL_CERT_DIR", "http_proxy", "https_proxy", "all_proxy", "no_proxy",
    "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY",
})  # fmt: skip
_NOBODY_IS_ASKED = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
    "GCM_INTERACTIVE": "never",
    "GH_PROMPT_DISABLED": "1",
    "GH_NO_UPDATE_NOTIFIER": "1",
    "NO_COLOR": "1",
    "LC_ALL": "C.UTF-8",  # `[rejected]` of git is translated otherwise
}


@dataclass(frozen=True, kw_only=True)
class Said:
    """How a program ended, and what it said."""

    code: int
    out: str
    err: str


class Outward:
    """Starts them for one project. No question of theirs is answered, and each has its time."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        """`environ`: the person's."""
        self._folder = folder
        theirs = {name: value for name, value in environ.items() if name in _THEIRS}
        self._environ = {**theirs, **_NOBODY_IS_ASKED}
        self._redacted = Redactor(theirs)

    def has(self, program: str) -> bool:
        """Whether the person has the program."""
        return shutil.which(program, path=self._environ.get("PATH", "")) is not None

    def push(self, remote: str, branch: str) -> Said:
        """Pushes one branch under its own name; never by force, and no hook is run."""
        ref = f"refs/heads/{branch}"
        off = ("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "push.gpgSign=false")
        flags = ("--porcelain", "--no-verify", "--no-follow-tags", "--recurse-submodules=no")
        return self._run("git", *off, "push", *flags, "--", remote, f"{ref}:{ref}")

    def gh(self, *words: str, text: str = "") -> Said:
        """GitHub's own program. `text` is what it reads."""
        return self._run("gh", *words, text=text)

    def _run(self, program: str, *words: str, text: str = "") -> Said:
        found = shutil.which(program, path=self._environ.get("PATH", ""))
        if found is None:
            raise GuildError(f"there is no {program} here")
        try:
            process = subprocess.Popen(
                [found, *words],
                cwd=self._folder,
                env=self._environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise GuildError(f"{program} cannot be started: {error.strerror}", where=found) from None
        with process:
            try:
                out, err = process.communicate(text.encode(), timeout=_PATIENCE)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # and whatever it has started
                message = f"`{program} {words[0]}` did not end within {_PATIENCE:.0f} s"
                raise GuildError(message, hint="Is the other side reachable? Try again.") from None
        return Said(code=process.returncode, out=out.decode(errors="replace"), err=self._told(err))

    def _told(self, raw: bytes) -> str:
        """What is shown of it: not too much, and none of the person's secrets."""
        text = self._redacted(raw.decode(errors="replace")).strip()
        return text if len(text) <= _SAID else f"...{text[-_SAID:]}"
