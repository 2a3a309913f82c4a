"""Which driver speaks to the program of a runtime. Imported when one is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.errors import RuntimeUnusable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from guildhall.runtimes.cli import Driver


def driver_of(runtime: str, environ: Mapping[str, str]) -> Callable[[], Driver]:
    """What makes the driver of a run."""
    match runtime:
        case "claude":
            from guildhall.runtimes.claude import Claude

            return Claude
        case "codex":
            from guildhall.runtimes.codex import Codex

            return Codex
        case "opencode":
            from guildhall.runtimes.opencode import OpenCode

            return OpenCode
        case "cursor":
            from guildhall.runtimes.cursor import Cursor

            return lambda: Cursor(environ)
        case _:
            raise RuntimeUnusable(f"runtime {runtime} cannot be provided by this version")
