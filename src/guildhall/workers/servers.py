"""What servers of tools that a worker's file names need to be there: a program, and variables. Nothing is started."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from guildhall.core.errors import ToolUnavailable
from guildhall.tools.mcp_model import installation
from guildhall.workers.code import SERVERS

if TYPE_CHECKING:
    from guildhall.core.frame import Frame
    from guildhall.workers.model import Worker


def program_of(worker: Worker, name: str, frame: Frame) -> Path:
    """The program of a server, as the caller's PATH finds it; one with a slash in its name lies in the project."""
    word = (worker.definition.mcp_servers[name].command or ("",))[0]
    if "/" in word:
        found = worker.folder(frame) / Path(word).expanduser()
        path = found if found.is_file() else None
    else:
        which = shutil.which(word, path=frame.env.get("PATH"))
        path = Path(which) if which else None
    if path is None:
        message = f"{SERVERS}.{name}.command: there is no program {word!r}"
        raise ToolUnavailable(message, where=worker.place, hint="Install it, or correct the command.")
    return path.absolute()


def variables_of(worker: Worker, name: str, frame: Frame) -> dict[str, str]:
    """The variables that a server is given: those of the caller's that the file names and the settings allow."""
    found: dict[str, str] = {}
    for variable in worker.definition.mcp_servers[name].env:
        if variable not in frame.env:
            message = f"{SERVERS}.{name}.env: the variable {variable} is not set, or not allowed"
            hint = f"Set it, and allow it in your settings: `env: [{variable}]`."
            raise ToolUnavailable(message, where=worker.place, hint=hint)
        found[variable] = frame.env[variable]
    return found


def seen_by(worker: Worker, name: str, program: Path, frame: Frame) -> tuple[Path, ...]:
    """What a server sees beside the run's folders, to read: where its program is installed, and what its command names.

    Of a file that is named the folder is seen, because what it loads lies beside it; but never the person's whole home.
    """
    person = Path.home()
    found = [*installation(program)]
    for word in (worker.definition.mcp_servers[name].command or ())[1:]:
        path = Path(word).expanduser()
        if path.is_absolute() and path.exists():
            found.append(path if path.is_dir() else path.parent)
    return tuple(path for path in dict.fromkeys(found) if path not in (*person.parents, person))
