"""Services of workers, packages and members: list, create, check and change them for the user.

A package is inspected without executing its code. The tools of an installed package are read in a confined process.
Does not load worker files: `guildhall.workers` does. Does not start members: `guildhall.members` does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from guildhall.core.clock import stamp
from guildhall.core.errors import Conflict, GuildError, NotFound, UsageError
from guildhall.core.ids import is_name
from guildhall.core.text_checks import did_you_mean
from guildhall.hall.client import interface
from guildhall.hall.client.interface import Members, Workers
from guildhall.hall.composition.environment import peek
from guildhall.hall.composition.hall import Hall, HallService
from guildhall.hall.services.health import check_worker_fully
from guildhall.members.model import BUSY_FILE, QUESTIONS_FILE
from guildhall.runs.assembly.activation import check_function
from guildhall.runs.assembly.tool_sources import describe_code
from guildhall.runs.record.records import list_unfinished
from guildhall.sandbox.view import View
from guildhall.tools.call_router import ToolEnvironment
from guildhall.workers import home_packages, lifecycle, records
from guildhall.workers.code_trust import package_code
from guildhall.workers.definition import Definition
from guildhall.workers.model import (
    WORKERS,
    AddedPackage,
    PackageDetails,
    PackageKind,
    PackageListing,
    PackageTool,
    Worker,
    WorkerListing,
)
from guildhall.workers.package import Package, read_package
from guildhall.workers.records import unfinished_work

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.paths import Home
    from guildhall.core.request_frame import Frame
    from guildhall.hall.client.model import WorkerReport
    from guildhall.members.model import ActiveJob, MemberDetails


class WorkerService(HallService, Workers):
    async def list(self, frame: Frame) -> Sequence[WorkerListing]:
        return self._hall.workers.registry(frame).listings()

    async def get(self, name: str, frame: Frame) -> Worker:
        return self._hall.workers.find(name, frame)

    async def check(self, name: str, frame: Frame) -> WorkerReport:
        return await check_worker_fully(self._hall, self._hall.workers.find(name, frame), frame)

    async def create(self, name: str, frame: Frame, *, force: bool = False) -> Path:
        locks = self._hall.store.read(records.all_locks)
        existing = self._hall.workers.registry(frame).listings()
        path = lifecycle.new_worker(frame.root / WORKERS, name, existing=existing, locks=locks, force=force)
        await self._hall.store.write(lambda connection: records.drop_lock(connection, path))
        return path

    async def lock(self, name: str, frame: Frame) -> Worker:
        worker = self._hall.workers.registry(frame).find(name, frame.cwd)
        pin = lifecycle.make_lock(worker, stamp(self._hall.clock.now()))
        await self._hall.store.write(lambda connection: records.put_lock(connection, pin))
        return self._hall.workers.find(name, frame)

    async def unlock(self, name: str, frame: Frame) -> Worker:
        worker = lifecycle.unlock(self._hall.workers.find(name, frame))
        await self._hall.store.write(lambda connection: records.drop_lock(connection, worker.path))
        return worker

    async def promote(self, name: str, frame: Frame) -> Worker:
        return lifecycle.set_status(self._hall.workers.find(name, frame), "active")

    async def retire(self, name: str, frame: Frame) -> Worker:
        return lifecycle.set_status(self._hall.workers.find(name, frame), "retired")


_log = logging.getLogger("guildhall.hall")
_NOT_PERMISSIONS = frozenset({"name", "description", "instructions", "status", "locked", "completion"})


class PackageService(HallService, interface.Packages):
    async def list(self) -> Sequence[PackageListing]:
        return await asyncio.to_thread(home_packages.Packages(self._hall.home).listings)

    async def get(self, name: str, frame: Frame) -> PackageDetails:
        return await _describe(self._hall, home_packages.Packages(self._hall.home).find(name), frame)

    async def inspect(self, folder: Path) -> PackageDetails:
        return await asyncio.to_thread(_inspect, folder)

    async def create(self, name: str, *, kind: PackageKind = "worker", template: str | None = None) -> Path:
        return home_packages.new_package(self._hall.home, name, kind, template)

    async def add(self, folder: Path, *, seen: str | None = None, force: bool = False) -> AddedPackage:
        return await asyncio.to_thread(
            home_packages.add_package,
            self._hall.home,
            folder,
            stamp(self._hall.clock.now()),
            confirmed_digest=seen,
            force=force,
            check_unused=partial(_check_unused, self._hall),
        )

    async def remove(self, name: str) -> Path:
        if is_name(name):  # a package with an invalid name cannot be in use
            _check_unused(self._hall, name)
        now = stamp(self._hall.clock.now())
        return await asyncio.to_thread(home_packages.remove_package, self._hall.home, name, now)


def _inspect(folder: Path) -> PackageDetails:
    """Return the content of a package folder, without executing any of its code."""
    if not folder.is_dir():
        message = f"cannot read the package: {folder} is not a folder"
        raise UsageError(message, hint="Pass the folder of a package. Unpack an archive first.")
    package = read_package(folder, check_name=False)
    code = home_packages.load_code(package)
    files, digest = home_packages.describe_files(folder, code)
    return PackageDetails(
        package=home_packages.package_listing(package),
        files=files,
        digest=digest,
        posture=package.posture,
        rights=_permissions(package) if "worker" in package.types else None,
        activate=package.table.activate,
        export=package.table.export,
        tools=tuple(tool for part in code if part.kind == "toolbox" for tool in home_packages.find_tools(part)),
    )


async def _describe(hall: Hall, package: Package, frame: Frame) -> PackageDetails:
    """Return an installed package with its problems, and with its tools as a confined child process finds them."""
    details = _inspect(package.folder)
    problems: list[str] = []
    if "toolbox" in package.types:
        code = next(code for code in home_packages.load_code(package) if code.kind == "toolbox")
        try:
            toolbox = await describe_code(code, ToolEnvironment(view=View(cwd=code.root)))
            tools = [
                PackageTool(name=tool.name, description=tool.description, capabilities=tuple(sorted(tool.capabilities)))
                for tool in toolbox.tools
            ]
            details = replace(details, tools=tuple(tools))
        except GuildError as error:
            problems.append(str(error))
    if package.table.activate is not None:
        try:
            await check_function(package_code(package, "activation"), str(package.path))
        except GuildError as error:
            problems.append(str(error))
    if "worker" in package.types:
        worker = home_packages.package_worker(package)
        problems += [str(error) for error in hall.workers.preflight.find_problems(worker, frame)]
    return replace(details, problems=tuple(problems))


def log_invalid_packages(home: Home) -> None:
    for package in home_packages.Packages(home).listings():
        if package.error is not None:
            _log.warning("skipped the package %s: %s", package.name, package.error)


def _check_unused(hall: Hall, name: str) -> None:
    """Raise Conflict if an unfinished run, commission or meeting uses the package."""
    users = [
        run
        for services in hall.all_services()
        for run, worker, snapshot in services.store.read(list_unfinished)
        if _uses_package(name, worker, snapshot)
    ]
    users += hall.store.read(lambda connection: unfinished_work(connection, (name, f"package/{name}")))
    if users:
        more = f", and {len(users) - 5} more" if len(users) > 5 else ""
        raise Conflict(
            f"cannot replace or remove the package {name!r}: in use by {', '.join(users[:5])}{more}",
            hint="Wait until these runs, commissions and meetings have ended, or cancel them: guild stop ID",
        )


def _uses_package(name: str, worker: str, snapshot: Mapping[str, Any] | None) -> bool:
    if snapshot is None:  # the run has not started
        return worker == name
    scope, definition = snapshot["worker"]["scope"], snapshot["worker"]["definition"]
    return (scope == "package" and definition["name"] == name) or name in definition["toolboxes"]


def _permissions(package: Package) -> dict[str, Any]:
    """Return the fields of the package's worker that grant permissions and differ from their defaults."""
    definition = home_packages.package_worker(package).definition
    fields = definition.model_dump(mode="json", exclude_defaults=True, exclude=set(_NOT_PERMISSIONS))
    return {name: fields[name] for name in Definition.model_fields if name in fields}


class MemberService(HallService, Members):
    async def list(self, frame: Frame) -> Sequence[MemberDetails]:
        members = self._hall.members
        return [members.details(member) for member in members.registry(frame).members()]

    async def get(self, name: str, frame: Frame) -> MemberDetails:
        return self._hall.members.details(self._hall.members.find(name, frame))

    async def create(self, name: str, frame: Frame, *, template: str | None = None) -> Path:
        from guildhall.members.registry import new_member

        return new_member(frame.root, name, template)

    async def tools(self, name: str, frame: Frame) -> Sequence[Mapping[str, Any]]:
        async with self._hall.members.connect(name, frame) as server:
            return [tool.as_shown() for tool in server.listed_tools]

    async def call(self, name: str, tool: str, arguments: Mapping[str, Any], frame: Frame) -> Mapping[str, Any]:
        async with self._hall.members.connect(name, frame) as server:
            known = [listed.name for listed in server.listed_tools]
            if tool not in known:
                raise NotFound(f"unknown tool {tool!r} of the member {name}", hint=did_you_mean(tool, known))
            return (await server.call(tool, arguments)).as_dict()

    async def stop(self, name: str, frame: Frame) -> MemberDetails:
        members = self._hall.members
        member = members.find(name, frame)
        await members.stop(member)
        return members.details(member)

    async def restart(self, name: str, frame: Frame) -> MemberDetails:
        members = self._hall.members
        member = members.find(name, frame)
        await members.stop(member)
        await members.client(member, frame)
        return members.details(member)

    async def active_jobs(self) -> Sequence[ActiveJob]:
        if (members := peek(self._hall, Hall.members)) is not None:
            return members.active_jobs()
        if not (self._hall.home.path / QUESTIONS_FILE).exists():
            return []
        from guildhall.members.jobs import JobWatcher

        return JobWatcher(self._hall.home.path / BUSY_FILE, self._hall.clock).unanswered_jobs()
