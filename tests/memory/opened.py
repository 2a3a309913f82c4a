"""Which entries below a folder are opened, as the interpreter's own audit events tell it."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

_watched: list[tuple[str, list[str]]] = []


def _heard(event: str, args: tuple[Any, ...]) -> None:
    if event == "open" and _watched and isinstance(args[0], str) and args[0].endswith(".md"):
        for folder, found in _watched:
            if args[0].startswith(folder):
                found.append(args[0])


sys.addaudithook(_heard)  # once: a hook stays for ever


@contextmanager
def opened(folder: Path) -> Generator[list[str]]:
    """The entries below the folder that are opened meanwhile."""
    found: list[str] = []
    watch = (str(folder), found)
    _watched.append(watch)
    try:
        yield found
    finally:
        _watched.remove(watch)
