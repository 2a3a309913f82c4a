"""View: the folders that a run can read or write, and its hidden and protected paths.

Does not read or write files (see `sandbox.files` and `sandbox.mounts`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Folder:
    """A folder that a run can read: a sandbox of the worker, or the working folder, which has no name."""

    path: Path
    name: str | None = None
    is_writable: bool = False
    allowed_suffixes: tuple[str, ...] = ()  # () permits all
    text_suffixes: tuple[str, ...] = ()  # () permits all
    attachment_suffixes: tuple[str, ...] = ()
    max_bytes: int = 10_000_000


@dataclass(frozen=True, kw_only=True)
class View:
    """The part of the disk that a run can see.

    Paths below a hidden path do not exist for the run, except for folders at or below a `shown` path further down.
    A protected path cannot be changed or created through a folder above it. A folder at or below a protected path has
    its own rules.
    """

    cwd: Path
    folders: tuple[Folder, ...] = ()
    hidden: tuple[Path, ...] = ()
    protected: tuple[Path, ...] = ()
    shown: tuple[Path, ...] = ()  # a checkout below the hall's home, which is hidden
