"""Discovery of runtime programs: finds the program of a runtime, checks its version, and lists its files.

A program is looked up in its variable (such as GUILDHALL_CLAUDE), in a Python package that bundles it, and on the PATH.
Asking a program for its version can take a second of CPU time, so the version is saved for the next hall.
Does not start runs: `runtimes.programs.runtime` does.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from guildhall.core.atomic_file import replace_file
from guildhall.core.errors import RuntimeMissing, RuntimeOutdated, RuntimeUnusable, ToolUnavailable
from guildhall.sandbox.jail import Confinement, spawn
from guildhall.sandbox.mounts import installation_folders, package_roots
from guildhall.sandbox.view import View

if TYPE_CHECKING:
    from guildhall.runtimes.catalog import RuntimeInfo

_BUNDLED = {"claude": ("claude_agent_sdk", "_bundled/claude")}  # Python packages that contain a program, and its path
_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)")
_VERSION_TIMEOUT_S = 30.0
_MAX_OUTPUT_CHARS = 100  # of unexpected output, in an error


@dataclass(frozen=True, kw_only=True)
class InstalledProgram:
    """A program that is installed in a supported version."""

    path: Path
    version: str
    needed_paths: tuple[Path, ...]  # to be readable in its sandbox
    search_path: str


class VersionCache:
    """The versions of programs by path and state of the file. A file saves them for the next hall."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        saved: Any = None
        with contextlib.suppress(OSError, ValueError, RecursionError):
            saved = json.loads(file.read_bytes()) if file is not None else None
        self._known = cast("dict[str, list[Any]]", saved) if isinstance(saved, dict) else {}

    def get(self, path: Path) -> str | None:
        match self._known.get(str(path)):
            case [*state, str(version)] if state == file_state(path) and _VERSION.fullmatch(version):
                return version
            case _:
                return None

    def save(self, path: Path, state: list[int], version: str) -> None:
        """Save a version. `state` is the state of the file before the program was executed."""
        self._known[str(path)] = [*state, version]
        if self._file is not None:
            with contextlib.suppress(OSError):
                replace_file(self._file, json.dumps(self._known).encode(), mode=0o666)


class Programs:
    """Finds the programs of runtimes."""

    def __init__(self, environ: Mapping[str, str], versions: VersionCache | None = None) -> None:
        self._environ = environ
        self._versions = versions or VersionCache()
        self._lock = asyncio.Lock()

    def with_variables(self, variables: Mapping[str, str]) -> Programs:
        """Return a finder that also uses the variables of a request."""
        other = Programs({**self._environ, **variables}, self._versions)
        other._lock = self._lock
        return other

    def locate(self, info: RuntimeInfo) -> Path | None:
        if named := self._environ.get(info.variable):
            return Path(named).expanduser().absolute()
        package, inside = _BUNDLED.get(info.name, ("", ""))
        spec = importlib.util.find_spec(package) if package else None  # does not import it
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            if (bundled := Path(folder) / inside).is_file():
                return bundled
        found = shutil.which(info.program or "", path=self._search_path)
        return Path(found).absolute() if found else None

    def check_installed(self, info: RuntimeInfo) -> Path | None:
        """Return the path of the program, or None if the runtime has no program. Raise RuntimeMissing.

        Does not start the program.
        """
        path = self.locate(info) if info.program is not None else None
        if info.program is not None and (path is None or not path.exists()):
            problem = f"{info.variable} is {path}, which does not exist" if path else "not installed"
            raise RuntimeMissing(f"runtime {info.name} needs {info.title}: {problem}", hint=_install_hint(info))
        return path

    async def find(self, info: RuntimeInfo) -> InstalledProgram:
        """Return the installed program. Raise RuntimeMissing, RuntimeOutdated or RuntimeUnusable."""
        path = self.check_installed(info)
        assert path is not None
        async with self._lock:
            version = await self._version(info, path)
        if info.min_version is not None and _version_tuple(version) < _version_tuple(info.min_version):
            text = f"runtime {info.name}: {info.title} {version} at {path} is older than {info.min_version}"
            raise RuntimeOutdated(text, hint=_install_hint(info, "Update it"))
        paths = _needed_paths(path, self._search_path)
        return InstalledProgram(path=path, version=version, needed_paths=paths, search_path=self._search_path)

    async def _version(self, info: RuntimeInfo, path: Path) -> str:
        if (known := await asyncio.to_thread(self._versions.get, path)) is not None:
            return known
        state = await asyncio.to_thread(file_state, path)
        version = await self._query_version(info, path)
        await asyncio.to_thread(self._versions.save, path, state, version)
        return version

    async def _query_version(self, info: RuntimeInfo, path: Path) -> str:
        try:
            needed = await asyncio.to_thread(_needed_paths, path, self._search_path)
            confinement = Confinement(view=View(cwd=Path("/")), env={"PATH": self._search_path}, read_only=needed)
            program = await spawn([str(path), "--version"], confinement)
        except (OSError, ToolUnavailable) as error:
            text = f"runtime {info.name}: cannot start {path}: {error}"
            raise RuntimeUnusable(text, hint=_install_hint(info)) from None
        try:
            async with asyncio.timeout(_VERSION_TIMEOUT_S):
                assert program.process.stdout is not None
                output = (await program.process.stdout.read()).decode(errors="replace")
                code = await program.wait()
        except TimeoutError:
            text = f"runtime {info.name}: cannot use {path}: --version did not exit within {_VERSION_TIMEOUT_S:g} s"
            raise RuntimeUnusable(text, hint=_install_hint(info)) from None
        finally:
            await program.kill()
        match = _VERSION.search(output)
        if code != 0 or match is None:
            line = output.strip().partition("\n")[0]
            shown = ascii(line[-_MAX_OUTPUT_CHARS:]) if line else "nothing"
            text = f"runtime {info.name}: {path} is not {info.title}: --version printed {shown}"
            raise RuntimeUnusable(text, hint=_install_hint(info))
        return match[0]

    @property
    def _search_path(self) -> str:
        return self._environ.get("PATH", "/usr/local/bin:/usr/bin:/bin")


def file_state(path: Path) -> list[int]:
    """Return values that change when the file changes. All files of an npm package have the same date."""
    stat = path.stat()
    return [stat.st_dev, stat.st_ino, stat.st_ctime_ns, stat.st_mtime_ns, stat.st_size]


def _install_hint(info: RuntimeInfo, verb: str = "Install it") -> str:
    return f"{verb}: {info.install}. If it is installed elsewhere, set {info.variable}=/path/to/{info.program}."


def _version_tuple(version: str) -> tuple[int, ...]:
    found = _VERSION.search(version)
    return tuple(int(number) for number in found.groups()) if found else ()


def _needed_paths(path: Path, search: str) -> tuple[Path, ...]:
    """Return the paths that a program needs: its file, and for a script its installation and its interpreter."""
    interpreter = _interpreter(path, search)
    if interpreter is None:
        return tuple(dict.fromkeys((path, path.resolve())))
    home = Path.home()
    found = (*installation_folders(path), *package_roots(path), *installation_folders(interpreter))
    return tuple(folder for folder in dict.fromkeys(found) if folder not in (*home.parents, home))


def _interpreter(path: Path, search: str) -> Path | None:
    with path.open("rb") as program:
        first = program.readline(200)
    if not first.startswith(b"#!"):
        return None
    command = first[2:].decode(errors="replace").split()
    if command and command[0].endswith("/env"):
        command = [word for word in command[1:] if not word.startswith("-")]
    found = shutil.which(command[0], path=search) if command else None
    return Path(found) if found else None
