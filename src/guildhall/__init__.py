"""Guildhall runs AI workers that are files.

The library's public names, imported when they are first used:

    Worker       a worker that can be run: Worker.load("reviewer").run("...")
    RunResult    what came of a run
    Toolbox      a named set of tools
    tool         makes a tool from a typed function
    Member       a guild member in a few lines: its tools, and the worker that takes work
    Answer       what an approver says, with a note
    GuildError   what every error of Guildhall is
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from guildhall.core.errors import GuildError
    from guildhall.hall.library import RunResult, Worker
    from guildhall.hall.member import Member
    from guildhall.runs.model import Answer
    from guildhall.tools.definition import tool
    from guildhall.tools.model import Toolbox

__version__ = "0.1.0"

__all__ = ["Answer", "GuildError", "Member", "RunResult", "Toolbox", "Worker", "tool"]

_HOMES = {
    "Answer": "guildhall.runs.model",
    "GuildError": "guildhall.core.errors",
    "Member": "guildhall.hall.member",
    "RunResult": "guildhall.hall.library",
    "Toolbox": "guildhall.tools.model",
    "Worker": "guildhall.hall.library",
    "tool": "guildhall.tools.definition",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
