"""Files of tests: finds test files, checks if they are trusted, and copies the project and the home.

A copy leaves out version control, package folders and links that lead out of the project. It has at most 10,000 files
and 200 MB. Does not execute tests (see `hall.testrun.runner`).
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from guildhall.core.errors import Conflict, NotTrusted
from guildhall.core.paths import Home, project_root
from guildhall.workers.code_trust import Code, CodeFile, Trust
from guildhall.workers.home_packages import BACKUPS

if TYPE_CHECKING:
    from guildhall.core.yaml import Source
    from guildhall.hall.composition.hall import Hall
    from guildhall.runs.plan.model import Plan

TESTS = "tests"
SUFFIXES = (".yaml", ".yml")
_TEST_FIELD = re.compile(rb"^(test|[\"']test[\"']) *:", re.MULTILINE)
_MAX_READ_BYTES = 1_000_001  # a larger file cannot be a script


def tests_in(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder that contain a test."""
    for path in sorted(folder.rglob("*")):
        is_hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.suffix in SUFFIXES and not is_hidden and path.is_file() and has_test(path):
            yield path


def has_test(path: Path) -> bool:
    """Return True if a file contains a test or is unreadable. Reading an unreadable file later raises the error."""
    try:
        with path.open("rb") as file:
            return _TEST_FIELD.search(file.read(_MAX_READ_BYTES)) is not None
    except OSError:
        return True


def root_of_test(file: Path) -> Path:
    """Return the project of a test. A folder with a folder `tests` is a project even without a settings file."""
    folder = file.absolute().parent
    root = project_root(folder)
    return folder.parent if root == folder and folder.name == TESTS else root


def code_of_test(source: Source, home: Home) -> Code:
    """Return the file of a test as code that needs trust."""
    path = source.path.resolve()
    root = root_of_test(source.path).resolve()
    shown = path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)
    file = CodeFile(path=path, display_path=shown, content=source.text.encode())
    return Code(kind="test", name=shown, root=root, files=(file,), is_own=root == home.path.resolve())


def check_programs_trusted(source: Source, hall: Hall, plan: Plan) -> None:
    """Raise NotTrusted if the test would execute programs and the current content of its file is not trusted."""
    code, trust = code_of_test(source, hall.home), Trust(hall.workers.pins())
    if not runs_programs(plan) or trust.is_trusted(code):
        return
    state = trust.files(code)[0].state_text
    raise NotTrusted(
        f"the test executes programs and is not trusted ({state})",
        where=str(source.path),
        hint=f"Review it, then: guild trust {shlex.quote(str(source.path))}",
    )


def runs_programs(plan: Plan) -> bool:
    return "proc.exec" in plan.reach


# Large folders that tools generate.
SKIPPED_NAMES = frozenset(
    {".git", ".hg", ".svn", "node_modules", ".venv", "venv", "__pycache__", ".tox", ".mypy_cache"}
)
MAX_FILES = 10_000
MAX_BYTES = 200_000_000


class _Copier:
    """Copies a folder, except for the folder `excluded`."""

    def __init__(self, root: Path, excluded: Path | None) -> None:
        self._real_root = Path(os.path.realpath(root))
        self._excluded = os.path.realpath(excluded) if excluded else None
        self._root = root
        self._file_count = 0
        self._byte_count = 0

    def copy(self, source: Path, target: Path) -> None:
        with os.scandir(source) as entries:
            target.mkdir(mode=0o700)
            for entry in entries:
                with suppress(PermissionError):
                    self._copy_entry(entry, target / entry.name)

    def _copy_entry(self, entry: os.DirEntry[str], target: Path) -> None:
        if entry.is_symlink():
            link = os.readlink(entry.path)  # noqa: PTH115 - the copy of a relative link is relative
            if not os.path.isabs(link) and Path(os.path.realpath(entry.path)).is_relative_to(self._real_root):  # noqa: PTH117
                target.symlink_to(link)
        elif entry.is_dir():
            if entry.name not in SKIPPED_NAMES and os.path.realpath(entry.path) != self._excluded:
                self.copy(Path(entry.path), target)
        elif entry.is_file():
            file_stat = entry.stat()
            self._count_file(file_stat.st_size)
            shutil.copyfile(entry.path, target)
            target.chmod(stat.S_IMODE(file_stat.st_mode) | stat.S_IRUSR | stat.S_IWUSR)

    def _count_file(self, size_bytes: int) -> None:
        """Raise Conflict if the copy exceeds a limit with a file of this size."""
        self._file_count += 1
        self._byte_count += size_bytes
        if self._file_count > MAX_FILES or self._byte_count > MAX_BYTES:
            raise Conflict(
                f"the project {self._root} is too large to be copied for a test",
                hint=f"A test copies at most {MAX_FILES:,} files and {MAX_BYTES // 1_000_000:,} MB. "
                "Move the worker and its files to a folder with a guildhall.yaml of its own.",
            )


def copy_project(root: Path, target: Path, *, excluded: Path | None = None) -> None:
    """Copy a project without generated and unreadable files, outward links and the folder `excluded`."""
    try:
        _Copier(root, excluded).copy(root, target)
    except OSError as error:
        raise Conflict(f"cannot copy the project: {error.strerror or error}", where=str(error.filename)) from None


def copy_home(home: Home, target: Home) -> None:
    """Copy the settings, workers, toolboxes and packages of a home, without its database and memory."""
    target.path.mkdir(mode=0o700)
    if home.settings.is_file():
        shutil.copyfile(home.settings, target.settings)
    folders = {home.workers: target.workers, home.toolboxes: target.toolboxes, home.packages: target.packages}
    for folder, copied in folders.items():
        if folder.is_dir():
            copy_project(folder, copied, excluded=home.packages / BACKUPS)


def delete_folder(folder: Path, project: Path) -> None:
    """Delete a folder of the copied project. Do nothing if a symbolic link is part of its path."""
    paths = [path for path in (folder, *folder.parents) if path.is_relative_to(project)]
    if len(paths) > 1 and not any(path.is_symlink() for path in paths):
        shutil.rmtree(folder, ignore_errors=True)


def write_files(project: Path, files: Mapping[str, str | None]) -> None:
    """Write the files of a test. None deletes a file. Symbolic links are not followed."""
    for name, text in files.items():
        path = project / name
        if any(parent.is_symlink() for parent in path.parents if parent.is_relative_to(project)):
            raise Conflict(f"cannot write files.{name}: the path contains a symbolic link")
        try:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            path.unlink(missing_ok=True)
            if text is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8", newline="")
        except OSError as error:
            raise Conflict(f"cannot write files.{name}: {error.strerror or error}") from None
