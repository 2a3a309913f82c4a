"""The tests of a project as something that is executed: a worker with a shell runs the commands that its test names."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from guildhall.core.errors import GuildError, NotTrusted
from guildhall.core.paths import project_root
from guildhall.hall.workflows import load_workflow
from guildhall.workers.code import Code, CodeFile
from guildhall.workers.model import WORKERS
from guildhall.workers.trust import Trust

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from guildhall.core.frame import Frame
    from guildhall.core.paths import Home
    from guildhall.core.yaml import Source
    from guildhall.hall.composition.hall import Hall
    from guildhall.models.case import Case
    from guildhall.runs.plan import Plan

TESTS = "tests"
SUFFIXES = (".yaml", ".yml")
_A_TEST = re.compile(rb"^(test|[\"']test[\"']) *:", re.MULTILINE)
_LOOKED_AT = 1_000_001  # bytes; what is larger is no script


def tests_in(folder: Path) -> Iterator[Path]:
    """The files in a folder that have a test in them."""
    for path in sorted(folder.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.suffix in SUFFIXES and not hidden and path.is_file() and has_test(path):
            yield path


def has_test(path: Path) -> bool:
    """Whether a file is one. One that cannot be read may be: reading it says what is wrong."""
    try:
        with path.open("rb") as file:
            return _A_TEST.search(file.read(_LOOKED_AT)) is not None
    except OSError:
        return True


def root_of_test(file: Path) -> Path:
    """The project that a test is of. One of workflows alone has nothing that marks it but its tests."""
    folder = file.absolute().parent
    root = project_root(folder)
    return folder.parent if root == folder and folder.name == TESTS else root


def code_of_test(source: Source, home: Home) -> Code:
    """The file of a test, as it was read."""
    path = source.path.resolve()
    root = root_of_test(source.path).resolve()
    shown = path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)
    file = CodeFile(path=path, shown=shown, content=source.text.encode())
    return Code(kind="test", name=shown, root=root, files=(file,), own=root == home.path.resolve())


def refuse_programs(source: Source, hall: Hall, plan: Plan) -> None:
    """Raises NotTrusted where the test would run programs and its file is not trusted as it is."""
    code, trust = code_of_test(source, hall.home), Trust(hall.pins())
    if not runs_programs(plan) or trust.holds(code):
        return
    said = trust.seen(code)[0].said
    raise NotTrusted(
        f"the worker can run programs, and the test says which: it is not trusted as it is ({said})",
        where=str(source.path),
        hint=f"Look at it, then: guild trust {shlex.quote(str(source.path))}",
    )


def runs_programs(plan: Plan) -> bool:
    return "proc.exec" in plan.reach


async def plans_of_test(case: Case, root: Path, hall: Hall, frame: Frame) -> tuple[list[Plan], bool]:
    """The plans of the worker of a test, or of the agents, if they can be had, and whether it could run programs.

    A test that brings a worker's file of its own is taken for one that does.
    """
    from guildhall.core.redaction import Redactor
    from guildhall.runs.neutral import Neutral

    frame = replace(frame, cwd=root / case.folder, root=root)
    name = str(Neutral(root, hall.home.path, Redactor(hall.environ)).restored(case.subject))
    brings = any(path == name or path.startswith(f"{WORKERS}/") for path in case.files)
    try:
        if case.workflow is None:
            plans = [await hall.planner.plan(hall.find_worker(name, frame), frame)]
        else:
            workflow = load_workflow(hall, root / name, frame)
            there = workflow.frame(frame)
            plans = [await hall.planner.plan(agent.worker, there) for agent in workflow.agents]
    except GuildError:
        return [], brings
    return plans, brings or any(map(runs_programs, plans))
