"""The service of packages: what a package contains, what it lacks here, and which runs use it."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from guildhall.core.clock import stamp
from guildhall.core.errors import Conflict, GuildError, UsageError
from guildhall.core.ids import is_name
from guildhall.hall.client import interface
from guildhall.runs.activate import demand_function
from guildhall.runs.boxes import describe
from guildhall.runs.records import unfinished
from guildhall.tools.builtin import Surroundings
from guildhall.tools.model import View
from guildhall.workers.code import activation_of
from guildhall.workers.definition import Definition
from guildhall.workers.package import read_package
from guildhall.workers.package_text import PackageShown, PackageTool, described_files, tools_said
from guildhall.workers.packages import Packages, code_in, listed_as, worker_in
from guildhall.workers.records import work_for

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from guildhall.core.frame import Frame
    from guildhall.core.paths import Home
    from guildhall.hall.composition.hall import Hall
    from guildhall.workers.package import Package
    from guildhall.workers.package_text import Added, Kind
    from guildhall.workers.packages import PackageListed

_log = logging.getLogger("guildhall.hall")
_NO_RIGHTS = frozenset({"name", "description", "instructions", "status", "locked", "completion"})


class PackageService(interface.Packages):
    def __init__(self, hall: Hall) -> None:
        self._hall = hall

    async def list(self) -> Sequence[PackageListed]:
        return await asyncio.to_thread(Packages(self._hall.home).listed)

    async def get(self, name: str, frame: Frame) -> PackageShown:
        return await _describe(self._hall, Packages(self._hall.home).find(name), frame)

    async def inspect(self, folder: Path) -> PackageShown:
        return await asyncio.to_thread(_inspect, folder)

    async def create(self, name: str, *, kind: Kind = "worker", template: str | None = None) -> Path:
        from guildhall.workers.package_change import new_package

        return new_package(self._hall.home, name, kind, template)

    async def add(self, folder: Path, *, seen: str | None = None, force: bool = False) -> Added:
        from guildhall.workers.package_change import add_package

        now, unused = stamp(self._hall.clock.now()), partial(_check_unused, self._hall)
        return await asyncio.to_thread(add_package, self._hall.home, folder, now, seen=seen, force=force, unused=unused)

    async def remove(self, name: str) -> Path:
        from guildhall.workers.package_change import remove_package

        if is_name(name):  # nothing else can be in use
            _check_unused(self._hall, name)
        return await asyncio.to_thread(remove_package, self._hall.home, name, stamp(self._hall.clock.now()))


def _inspect(folder: Path) -> PackageShown:
    """Return what a package folder contains, without executing any of its code."""
    if not folder.is_dir():
        hint = "Unpack an archive first: a package is added from its folder."
        raise UsageError(f"{folder} is no folder", hint=hint)
    package = read_package(folder, named=False)
    code = code_in(package)
    files, digest = described_files(folder, code)
    return PackageShown(
        package=listed_as(package),
        files=files,
        digest=digest,
        posture=package.posture,
        rights=_rights(package) if "worker" in package.types else None,
        activate=package.table.activate,
        export=package.table.export,
        tools=tuple(tool for one in code if one.kind == "toolbox" for tool in tools_said(one)),
    )


async def _describe(hall: Hall, package: Package, frame: Frame) -> PackageShown:
    """Return an installed package with its problems, and with its tools as a confined child process finds them."""
    told = _inspect(package.folder)
    problems: list[str] = []
    if "toolbox" in package.types:
        code = next(one for one in code_in(package) if one.kind == "toolbox")
        try:
            box = await describe(code, Surroundings(view=View(cwd=code.root)))
            tools = [
                PackageTool(name=one.name, description=one.description, capabilities=tuple(sorted(one.capabilities)))
                for one in box.tools
            ]
            told = replace(told, tools=tuple(tools))
        except GuildError as error:
            problems.append(str(error))
    if package.table.activate is not None:
        try:
            await demand_function(activation_of(package), str(package.path))
        except GuildError as error:
            problems.append(str(error))
    if "worker" in package.types:
        problems += [str(error) for error in hall.supply.lacking(worker_in(package), frame)]
    return replace(told, problems=tuple(problems))


def log_invalid(home: Home) -> None:
    """Log which packages are skipped, and why."""
    for package in Packages(home).listed():
        if package.error is not None:
            _log.warning("the package %s is skipped: %s", package.name, package.error)


def _check_unused(hall: Hall, name: str) -> None:
    """Raise Conflict if an unfinished run or job uses the package."""
    users = [
        run
        for part in (hall, *hall.annexes.every())
        for run, worker, frozen in part.store.read(unfinished)
        if _uses(name, worker, frozen)
    ]
    users += hall.store.read(lambda connection: work_for(connection, (name, f"package/{name}")))
    if users:
        more = f", and {len(users) - 5} more" if len(users) > 5 else ""
        raise Conflict(
            f"the package {name!r} is in use: {', '.join(users[:5])}{more}",
            hint="Wait until they are over, or end them: guild stop ID.",
        )


def _uses(name: str, worker: str, frozen: Mapping[str, Any] | None) -> bool:
    if frozen is None:  # it has not begun
        return worker == name
    then = frozen["worker"]
    return (then["scope"] == "package" and then["definition"]["name"] == name) or name in then["definition"][
        "toolboxes"
    ]


def _rights(package: Package) -> dict[str, Any]:
    """Return the fields of the package's worker that differ from their defaults."""
    definition = worker_in(package).definition
    said = definition.model_dump(mode="json", exclude_defaults=True, exclude=set(_NO_RIGHTS))
    return {name: said[name] for name in Definition.model_fields if name in said}
