"""Which files are workflows: those that name agents at their top. Imports nothing heavy: every `guild run` asks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, cast

from guildhall.core import yaml
from guildhall.core.errors import GuildError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SUFFIXES = (".yaml", ".yml", ".json")
WORKFLOWS = "workflows"  # a folder of a project
_AGENTS = re.compile(rb"^agents[ \t]*:", re.MULTILINE)


def is_workflow(path: Path) -> bool:
    """Whether a file is one. What is wrong in it is told when it is loaded."""
    try:
        if path.suffix not in SUFFIXES or not path.is_file():
            return False
        with path.open("rb") as file:
            content = file.read(yaml.MAX_BYTES)
    except (OSError, ValueError):  # ValueError: a NUL in the path
        return False
    if path.suffix != ".json" and _AGENTS.search(content) is not None:
        return True
    if b"agents" not in content:
        return False
    try:  # JSON, or YAML that is written like it
        data = cast("object", yaml.read(path).data)
    except GuildError:
        return False
    return isinstance(data, dict) and "agents" in data


def workflows_in(folder: Path) -> Iterator[Path]:
    """The workflow files of a project: at its top, and in workflows/."""
    for place in (folder, folder / WORKFLOWS):
        try:
            paths = sorted(place.iterdir())
        except OSError:
            continue
        yield from (path for path in paths if not path.name.startswith(".") and is_workflow(path))
