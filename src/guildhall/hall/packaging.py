"""Packages as a hall knows them: what one brings, what it lacks here, who uses it just now."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from guildhall.core.errors import Conflict, GuildError, UsageError
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
    from collections.abc import Mapping
    from pathlib import Path

    from guildhall.core.frame import Frame
    from guildhall.core.paths import Home
    from guildhall.hall.composition.hall import Hall
    from guildhall.workers.package import Package

_log = logging.getLogger("guildhall.hall")
_NO_RIGHTS = frozenset({"name", "description", "instructions", "status", "locked", "completion"})


def looked_at(folder: Path) -> PackageShown:
    """What a package says that it brings. Nothing of it is run: a person decides first."""
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


async def shown(hall: Hall, package: Package, frame: Frame) -> PackageShown:
    """A package of the home: its tools as a host that can do nothing has found them, and what it lacks here."""
    told = looked_at(package.folder)
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
        problems += [str(error) for error in hall.workers.supply.lacking(worker_in(package), frame)]
    return replace(told, problems=tuple(problems))


def log_invalid(home: Home) -> None:
    """Says in the log which packages are skipped, and why."""
    for package in Packages(home).listed():
        if package.error is not None:
            _log.warning("the package %s is skipped: %s", package.name, package.error)


def demand_unused(hall: Hall, name: str) -> None:
    """Raises while something that is not over uses a package."""
    users = [
        run
        for part in hall.databases()
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
    """The fields of a worker that are not as they would be by themselves."""
    definition = worker_in(package).definition
    said = definition.model_dump(mode="json", exclude_defaults=True, exclude=set(_NO_RIGHTS))
    return {name: said[name] for name in Definition.model_fields if name in said}
