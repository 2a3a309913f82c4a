"""Guildhall runs AI workers that are defined in files.

The public names of the library are imported when they are first used:

    Worker       a worker: Worker.load("reviewer").run("...")
    RunResult    the result of a run
    Toolbox      a named set of tools
    tool         makes a tool from a typed function
    Member       a guild member with its tools and its worker
    Answer       an answer to an ask, with a note
    GuildError   the base class of all errors
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from guildhall.core.errors import GuildError as GuildError
    from guildhall.hall.python_api import RunResult as RunResult
    from guildhall.hall.python_api import Worker as Worker
    from guildhall.hall.python_member import Member as Member
    from guildhall.runs.model import Answer as Answer
    from guildhall.tools.definition import tool as tool
    from guildhall.tools.model import Toolbox as Toolbox

__version__ = "0.1.0"

__getattr__, __dir__ = lazy_exports(__name__, __file__)
