"""Records which entries are opened, using the interpreter's audit events."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

_recorders: list[tuple[str, list[str]]] = []


def _on_audit_event(event: str, args: tuple[Any, ...]) -> None:
    if event == "open" and _recorders and isinstance(args[0], str) and args[0].endswith(".md"):
        for folder, paths in _recorders:
            if args[0].startswith(folder):
                paths.append(args[0])


sys.addaudithook(_on_audit_event)  # at import: an audit hook cannot be removed


@contextmanager
def record_opened_files(folder: Path) -> Generator[list[str]]:
    """Yield a list that collects the paths of the entries that are opened below the folder."""
    paths: list[str] = []
    recorder = (str(folder), paths)
    _recorders.append(recorder)
    try:
        yield paths
    finally:
        _recorders.remove(recorder)
