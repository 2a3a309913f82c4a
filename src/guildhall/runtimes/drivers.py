"""Which driver speaks to the program of a runtime. Imported when one is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.errors import RuntimeUnusable

if TYPE_CHECKING:
    from collections.abc import Callable

    from guildhall.runtimes.cli import Driver

DRIVEN = ("pydantic", "claude")  # what can be executed; pydantic needs no driver


def driver_of(runtime: str) -> Callable[[], Driver]:
    """What makes the driver of a run."""
    match runtime:
        case "claude":
            from guildhall.runtimes.claude import Claude

            return Claude
        case _:
            raise RuntimeUnusable(f"runtime {runtime} cannot be provided by this version")
