"""Discovery of runtime programs: finds the program of a runtime, checks its version, and lists its files.

A program is looked up in its variable (such as GUILDHALL_CLAUDE), in a Python package that bundles it, and on the PATH.
Asking a program for its version can take a second of CPU time, so the version is saved for the next hall.
Does not start runs: `programs.runtime` does.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from guildhall.core.atomic_file import replace_file
from guildhall.core.errors import RuntimeMissing, RuntimeOutdated, RuntimeUnusable, ToolUnavailable
from guildhall.sandbox.jail import Confinement, spawn
from guildhall.sandbox.view import View
from guildhall.tools.mcp.model import installation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from guildhall.runtimes.catalog import Row

_BUNDLED = {"claude": ("claude_agent_sdk", "_bundled/claude")}  # packages that bring a program, and where in them
_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)")
_WITHIN = 30.0  # seconds to say its version
_SAID = 100  # characters of what it says instead


@dataclass(frozen=True, kw_only=True)
class Installed:
    """A program that is there and will do."""

    path: Path
    version: str
    sees: tuple[Path, ...]  # what it needs of the disk to be started
    search: str  # its PATH


class Versions:
    """What programs have said of themselves, each as its file was then."""

    def __init__(self, kept: Path | None = None) -> None:
        """`kept`: where it is written down for the next hall; what stands there and does not fit is not believed."""
        self._kept = kept
        found: Any = None
        with contextlib.suppress(OSError, ValueError, RecursionError):
            found = json.loads(kept.read_bytes()) if kept is not None else None
        self._known = cast("dict[str, list[Any]]", found) if isinstance(found, dict) else {}

    def of(self, path: Path) -> str | None:
        match self._known.get(str(path)):
            case [*state, str(version)] if state == state_of(path) and _VERSION.fullmatch(version):
                return version
            case _:
                return None

    def note(self, path: Path, state: list[int], version: str) -> None:
        """`state`: of the file, before it was asked."""
        self._known[str(path)] = [*state, version]
        if self._kept is None:
            return
        with contextlib.suppress(OSError):  # the next hall asks again then
            replace_file(self._kept, json.dumps(self._known).encode(), mode=0o666)


class Programs:
    """Knows the programs of a machine."""

    def __init__(self, environ: Mapping[str, str], versions: Versions | None = None) -> None:
        self._environ = environ
        self._versions = versions or Versions()
        self._looking = asyncio.Lock()

    def seen_by(self, brought: Mapping[str, str]) -> Programs:
        """The same for a request that has brought variables of its own."""
        other = Programs({**self._environ, **brought}, self._versions)
        other._looking = self._looking
        return other

    def where(self, row: Row) -> Path | None:
        """Where the program of a runtime is, if it is anywhere."""
        if named := self._environ.get(row.variable):
            return Path(named).expanduser().absolute()
        package, inside = _BUNDLED.get(row.name, ("", ""))
        spec = importlib.util.find_spec(package) if package else None  # nothing of it is imported
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            if (bundled := Path(folder) / inside).is_file():
                return bundled
        found = shutil.which(row.program or "", path=self._search)
        return Path(found).absolute() if found else None

    def demand(self, row: Row) -> Path | None:
        """Where the program of a runtime is, if it needs one. Nothing is started to see that."""
        path = self.where(row) if row.program is not None else None
        if row.program is not None and (path is None or not path.exists()):
            where = f"{row.variable} names {path}, and nothing is there" if path else "it is not installed"
            raise RuntimeMissing(f"runtime {row.name}: {row.title} is needed, and {where}", hint=_how(row))
        return path

    async def find(self, row: Row) -> Installed:
        """The program of a runtime, in a version that does; an error that says what to do otherwise."""
        path = self.demand(row)
        assert path is not None
        async with self._looking:
            version = await self._version(row, path)
        if row.least is not None and _numbers(version) < _numbers(row.least):
            said = f"runtime {row.name}: {path} is {row.title} {version}, and {row.least} is the oldest that works"
            raise RuntimeOutdated(said, hint=_how(row, "Update it"))
        return Installed(path=path, version=version, sees=_needed(path, self._search), search=self._search)

    async def _version(self, row: Row, path: Path) -> str:
        if (known := await asyncio.to_thread(self._versions.of, path)) is not None:
            return known
        state = await asyncio.to_thread(state_of, path)
        version = await self._asked(row, path)
        await asyncio.to_thread(self._versions.note, path, state, version)
        return version

    async def _asked(self, row: Row, path: Path) -> str:
        try:
            needed = await asyncio.to_thread(_needed, path, self._search)
            confinement = Confinement(view=View(cwd=Path("/")), env={"PATH": self._search}, read_only=needed)
            program = await spawn([str(path), "--version"], confinement)
        except (OSError, ToolUnavailable) as error:
            raise RuntimeUnusable(f"runtime {row.name}: {path} cannot be started: {error}", hint=_how(row)) from None
        try:
            async with asyncio.timeout(_WITHIN):
                assert program.process.stdout is not None
                said = (await program.process.stdout.read()).decode(errors="replace")
                code = await program.wait()
        except TimeoutError:
            said, code = f"nothing within {_WITHIN:.0f} s", -1
        finally:
            await program.kill()
        found = _VERSION.search(said)
        if code != 0 or found is None:
            line = said.strip().partition("\n")[0]
            told = f"asked for its version, it said {ascii(line[-_SAID:]) if line else 'nothing'}"
            raise RuntimeUnusable(f"runtime {row.name}: {path} is not {row.title}: {told}", hint=_how(row))
        return found[0]

    @property
    def _search(self) -> str:
        return self._environ.get("PATH", "/usr/local/bin:/usr/bin:/bin")


def state_of(path: Path) -> list[int]:
    """What is another when the file is another. Packages of npm are all of one date, so that alone would not do."""
    stat = path.stat()
    return [stat.st_dev, stat.st_ino, stat.st_ctime_ns, stat.st_mtime_ns, stat.st_size]


def _how(row: Row, verb: str = "Install it") -> str:
    return f"{verb}: {row.install}. If it is installed elsewhere, set {row.variable}=/path/to/{row.program}."


def _numbers(version: str) -> tuple[int, ...]:
    found = _VERSION.search(version)
    return tuple(int(number) for number in found.groups()) if found else ()


def _needed(path: Path, search: str) -> tuple[Path, ...]:
    """What of the disk a program needs: itself; where it is a script, its whole installation and its interpreter."""
    interpreter = _interpreter(path, search)
    if interpreter is None:
        return tuple(dict.fromkeys((path, path.resolve())))
    person = Path.home()
    modules = [folder for folder in path.resolve().parents if folder.name == "node_modules"]  # packages of npm share it
    found = (*installation(path), *modules[-1:], *installation(interpreter))
    return tuple(folder for folder in dict.fromkeys(found) if folder not in (*person.parents, person))


def _interpreter(path: Path, search: str) -> Path | None:
    with path.open("rb") as program:
        first = program.readline(200)
    if not first.startswith(b"#!"):
        return None
    words = first[2:].decode(errors="replace").split()
    names = [word for word in words[1:] if not word.startswith("-")] if words and words[0].endswith("/env") else words
    found = shutil.which(names[0], path=search) if names else None
    return Path(found) if found else None
