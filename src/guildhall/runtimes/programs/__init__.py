"""Program runtimes: execute runs with Claude Code, Codex, OpenCode or Cursor, each with a driver, in a sandbox.

Does not answer model calls: `models.passthrough` does. Except for Cursor, a program reaches only the hall's two doors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from guildhall.runtimes.programs.runtime import Driver as Driver
    from guildhall.runtimes.programs.runtime import ProgramRuntime as ProgramRuntime
    from guildhall.runtimes.programs.runtime import driver_factory as driver_factory

__getattr__, __dir__ = lazy_exports(__name__, __file__)
