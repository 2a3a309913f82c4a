"""The files that a run changed, as they were before it: as far as its record shows.

A test begins with the project as it is today, in which the run's own work is done already. What the run made was not
there; what it read as a whole and then changed was as it read it. Nothing else is known, and nothing is guessed.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guildhall.runs.record.entries import Assembly, ToolEnded, ToolStarted, WorkerCreated
from guildhall.tools.model import ToolResult

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from guildhall.runs.journal import Journal
    from guildhall.runs.model import Run

_NUMBERED = re.compile(r" *\d+\t(.*)")
_CUT = re.compile(r"\n\[cut: [\d,]+ of [\d,]+ characters\]$")
_CHANGING = frozenset({"sandbox_write_text", "Write", "Edit"})
_MOST = 50_000  # characters of one file


def files_before(tree: Sequence[tuple[Run, Journal]]) -> tuple[dict[str, str | None], list[str]]:
    """Path in the project -> what it held, None: it was not there. And the paths of which that is not known."""
    held: dict[str, str | None] = {}
    changed: dict[str, None] = {}
    for run, journal in tree:
        for tool, path, result in _calls(run, journal):
            if tool not in _CHANGING:
                if path not in changed and (text := _whole(tool, result)) is not None:
                    held.setdefault(path, text)
                continue
            if path not in changed and result.startswith("Made "):
                held[path] = None
            changed[path] = None
        for path in _made(run, journal):
            held[path] = changed[path] = None
    known = {path: held[path] for path in changed if path in held}
    return known, [path for path in changed if path not in known]


def _calls(run: Run, journal: Journal) -> Iterator[tuple[str, str, str]]:
    """The successful calls that read or changed a file of the project: the tool, the path, what it said."""
    root, cwd = run.frame.root, run.frame.cwd
    for end in journal.all(ToolEnded):
        began = journal.last(end.key or "", ToolStarted)
        result = ToolResult.from_dict(end.data.result)
        if began is None or result.is_error:
            continue
        place = _place(began.data.tool, began.data.arguments or {}, journal.assembly, root, cwd)
        if place is not None and (path := _inside(place, root)) is not None:
            yield began.data.tool, path, result.text


def _made(run: Run, journal: Journal) -> Iterator[str]:
    """The files of workers that the run has made."""
    for entry in journal.all(WorkerCreated):
        for file in entry.data.files:
            if (path := _inside(Path(file), run.frame.root)) is not None:
                yield path


def _place(tool: str, arguments: Mapping[str, Any], frozen: Assembly, root: Path, cwd: Path) -> Path | None:
    if tool in {"Read", "Write", "Edit"} and arguments.get("offset") is None and arguments.get("limit") is None:
        return cwd / str(arguments.get("file_path"))
    sandbox = frozen.worker["definition"]["sandboxes"].get(arguments.get("sandbox"))
    if tool in {"sandbox_read_text", "sandbox_write_text"} and sandbox is not None:
        return root / sandbox["path"] / str(arguments.get("path"))
    return None


def _inside(path: Path, root: Path) -> str | None:
    """The path from the top of the project, if it is in it."""
    for top in (str(root), os.path.realpath(root)):
        relative = os.path.relpath(os.path.normpath(path), top)
        if not relative.startswith("..") and relative != ".":
            return relative
    return None


def _whole(tool: str, text: str) -> str | None:
    """What a file held, if the result of reading it tells all of it."""
    if len(text) > _MOST:
        return None
    if tool == "sandbox_read_text":
        return None if _CUT.search(text) else text
    if tool != "Read":
        return None
    lines = [_NUMBERED.fullmatch(line) for line in text.split("\n")]
    return "".join(f"{line[1]}\n" for line in lines if line) if all(lines) else None
