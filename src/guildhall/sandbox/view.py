"""View: lists the folders that a run sees, the folders that it may write, and the hidden and protected paths.

Does not read or write files (see `sandbox.files` and `sandbox.mounts`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Folder:
    """A folder that a run may see. With a name it is a sandbox of the worker's; None: the folder it works in."""

    path: Path
    name: str | None = None
    writable: bool = False
    allowed_suffixes: tuple[str, ...] = ()  # empty: all
    text_suffixes: tuple[str, ...] = ()  # empty: all
    attachment_suffixes: tuple[str, ...] = ()
    max_bytes: int = 10_000_000


@dataclass(frozen=True, kw_only=True)
class View:
    """All that a run can see of the disk. What lies below a hidden path is not there, whatever folder holds it; but a
    folder at or below a `shown` one, which lies further down, is.

    What is kept is read and never changed through a folder above it, nor made where it is not there. A folder that is
    itself a kept path, or lies below one, was named on purpose and has its own rules.
    """

    cwd: Path
    folders: tuple[Folder, ...] = ()
    hidden: tuple[Path, ...] = ()
    kept: tuple[Path, ...] = ()
    shown: tuple[Path, ...] = ()  # a checkout below the hall's home, which is hidden
