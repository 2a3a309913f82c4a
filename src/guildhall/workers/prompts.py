"""Finds a worker's instructions: inline, or in `prompts/<name>.{md,txt,j2,jinja2}`.

Text is taken as it stands; only `.j2` and `.jinja2` are rendered, in a child process with a hard end (`rendering.py`).
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guildhall.core.errors import InvalidFile
from guildhall.workers import rendering

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SUFFIXES = (".md", ".txt", ".j2", ".jinja2")
RENDERED = frozenset({".j2", ".jinja2"})
CPU_SECONDS = 2  # a template's own work; starting Python is most of it
WALL_SECONDS = 20.0


def find_prompt(name: str, folders: Sequence[Path]) -> Path | None:
    """The prompt file of a worker in the first folder that has one. Two in one folder is an error."""
    for folder in folders:
        found = [path for suffix in SUFFIXES if (path := folder / f"{name}{suffix}").exists() or path.is_symlink()]
        if len(found) > 1:
            both = " and ".join(path.name for path in found)
            raise InvalidFile(f"there are two prompts for one worker: {both}", where=str(folder), hint="Keep one.")
        if found:
            return found[0]
    return None


def prompt_text(prompt: Path, values: Mapping[str, Any], *, seconds: int = CPU_SECONDS) -> str:
    """The instructions that a prompt file stands for."""
    if prompt.suffix in RENDERED:
        return _rendered(prompt, values, seconds)
    try:
        return rendering.read_inside(str(prompt.parent), prompt.name)
    except rendering.Outside as error:
        raise InvalidFile(str(error), where=str(prompt)) from None


def _rendered(prompt: Path, values: Mapping[str, Any], seconds: int) -> str:
    request = {
        "path": sys.path,
        "folder": str(prompt.parent),
        "name": prompt.name,
        "values": dict(values),
        "seconds": seconds,
    }
    too_long = InvalidFile("the template takes too long to render", where=str(prompt), hint="Look for endless loops.")
    try:
        child = subprocess.run(
            [sys.executable, "-I", str(Path(rendering.__file__))],
            input=json.dumps(request).encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={},
            timeout=WALL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise too_long from None
    if child.returncode < 0:
        raise too_long
    try:
        answer: dict[str, Any] = json.loads(child.stdout)
    except ValueError:
        raise InvalidFile("the template broke its renderer", where=str(prompt)) from None
    if "text" in answer:
        return answer["text"]
    place = f"{prompt.parent / answer['file']}:{answer['line']}" if answer.get("file") else str(prompt)
    raise InvalidFile(f"the template cannot be rendered: {answer['error']}", where=place)
