"""The commands that work must pass before it counts as done: a person's, confined to a checkout, without network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from guildhall.core.errors import GuildError
from guildhall.tools.define import invoke
from guildhall.tools.model import Folder, View
from guildhall.tools.shell import shell_tools

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

SECONDS = 600.0  # that a command may take
_KEPT = 4_000  # characters of its output that are kept


@dataclass(frozen=True, kw_only=True)
class Check:
    """What came of one command."""

    command: str
    passed: bool
    output: str  # its end

    def as_dict(self) -> dict[str, Any]:
        return {"command": self.command, "passed": self.passed, "output": self.output}


async def run_checks(commands: Sequence[str], place: Path, env: Mapping[str, str]) -> list[Check]:
    """Runs the commands in a folder, one after another, up to the first that fails."""
    view = View(cwd=place, folders=(Folder(path=place, writable=True),))
    shell = shell_tools(view, {**env, "PYTHONDONTWRITEBYTECODE": "1"}, network=False)[0]
    done: list[Check] = []
    for command in commands:
        try:
            result = await invoke(shell, {"command": command, "timeout": SECONDS})
            done.append(Check(command=command, passed=not result.is_error, output=result.text[-_KEPT:]))
        except GuildError as error:  # there is no jail here
            done.append(Check(command=command, passed=False, output=str(error)))
        if not done[-1].passed:
            break
    return done
