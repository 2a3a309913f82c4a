"""What a package would bring, as far as its files say so: nothing of it is run."""

from __future__ import annotations

import ast
import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from guildhall.core import ids
from guildhall.core.errors import Conflict, InvalidFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from guildhall.workers.code import Code
    from guildhall.workers.packages import PackageListed

Kind = Literal["worker", "toolbox", "both"]

MOST_FILES = 2_000
MOST_BYTES = 50_000_000
# What others keep beside the files of a package, and no part of it.
_NOT_OF_IT = frozenset({"__pycache__", "node_modules", "venv", "build", "dist"})


@dataclass(frozen=True, kw_only=True)
class PackageFile:
    """A file of a package."""

    path: str  # from the package
    size: int
    runs: bool = False  # it is code that may be executed


@dataclass(frozen=True, kw_only=True)
class PackageTool:
    """A tool that a package exports."""

    name: str
    description: str
    capabilities: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PackageShown:
    """A package with all that it brings."""

    package: PackageListed
    files: tuple[PackageFile, ...]
    digest: str  # of all files
    posture: str | None = None  # of a worker
    rights: Mapping[str, Any] | None = None  # of a worker: the fields of its definition that say something
    activate: str | None = None
    export: str | None = None
    tools: tuple[PackageTool, ...] = ()  # of a toolbox
    problems: tuple[str, ...] = ()  # why its worker or its tools could not be used here

    def as_dict(self) -> dict[str, Any]:
        return {
            **self.package.as_dict(),
            "posture": self.posture,
            "rights": dict(self.rights) if self.rights is not None else None,
            "activate": self.activate,
            "export": self.export,
            "tools": [{**vars(tool), "capabilities": list(tool.capabilities)} for tool in self.tools],
            "files": [vars(file) for file in self.files],
            "digest": self.digest,
            "problems": list(self.problems),
        }


@dataclass(frozen=True, kw_only=True)
class Added:
    """A package that is now in the home."""

    name: str
    path: Path
    kept: Path | None = None  # where the one is that it has replaced


def files_below(folder: Path) -> Iterator[Path]:
    """Every file of a package. What is no plain file is refused: a link leads elsewhere."""
    count = size = 0
    for place, folders, files in os.walk(folder, onerror=_unreadable):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _NOT_OF_IT)
        for name in (*folders, *sorted(files)):
            path = folder / place / name
            status = path.lstat()
            if stat.S_ISDIR(status.st_mode):
                continue
            if not stat.S_ISREG(status.st_mode):
                kind = "a link" if stat.S_ISLNK(status.st_mode) else "no plain file"
                raise InvalidFile(f"this is {kind}", where=str(path), hint="Put a copy into the package.")
            count, size = count + 1, size + status.st_size
            if count > MOST_FILES or size > MOST_BYTES:
                message = f"the package is too large: over {MOST_FILES:,} files or {MOST_BYTES // 1_000_000} MB"
                raise Conflict(message, where=str(folder), hint="Is it the folder of the package itself?")
            yield path


def _unreadable(error: OSError) -> None:
    raise InvalidFile(f"the folder cannot be read: {error.strerror or error}", where=str(error.filename))


def described_files(folder: Path, code: Iterable[Code]) -> tuple[tuple[PackageFile, ...], str]:
    """The files of a package, and a digest of all of them."""
    try:
        return _described(folder, code)
    except OSError as error:
        raise InvalidFile(f"the package cannot be read: {error.strerror or error}", where=str(folder)) from None


def _described(folder: Path, code: Iterable[Code]) -> tuple[tuple[PackageFile, ...], str]:
    runs = {file.path for one in code for file in one.files}
    found: list[PackageFile] = []
    digests: dict[str, str] = {}
    for path in files_below(folder):
        shown, data = path.relative_to(folder).as_posix(), path.read_bytes()
        found.append(PackageFile(path=shown, size=len(data), runs=path.resolve() in runs))
        digests[shown] = ids.digest(data)
    return tuple(found), ids.fingerprint(digests)


def tools_said(code: Code) -> tuple[PackageTool, ...]:
    """The functions that are decorated with `tool`. There may be others: what is made by hand is not seen."""
    return tuple(tool for text in code.sources().values() for tool in _tools(text))


def _tools(text: str) -> Iterator[PackageTool]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # loading it will say so
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for decorator in node.decorator_list:
                call = decorator if isinstance(decorator, ast.Call) else None
                target = call.func if call else decorator
                if getattr(target, "id", getattr(target, "attr", None)) == "tool":
                    given = {one.arg: _literal(one.value) for one in call.keywords} if call else {}
                    yield _tool(node, given)


def _tool(node: ast.FunctionDef | ast.AsyncFunctionDef, given: Mapping[str | None, Any]) -> PackageTool:
    name, can = given.get("name"), given.get("capabilities") or ()
    known = cast("list[Any]", can) if isinstance(can, set | list | tuple) else ["?"]
    said = (ast.get_docstring(node) or "").partition("\n\n")[0]
    return PackageTool(
        name=name if isinstance(name, str) else node.name,
        description=" ".join(said.split()),
        capabilities=tuple(sorted(map(str, known))),
    )


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return "?"
