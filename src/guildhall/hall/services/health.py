"""Service of the hall itself: reports its status, and checks the installation (`guild doctor`) and workers.

The check of a worker compares its declarations with the keys, programs, code and schemas that exist here.
Does not repair anything. Does not find missing declarations: `runs.assembly.preflight` does.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from guildhall import __version__
from guildhall.core.errors import GuildError, RuntimeMissing
from guildhall.core.request_frame import Frame
from guildhall.hall.client.interface import HallInfo
from guildhall.hall.client.model import Check, ClientSettings, HallStatus, ProcessStatus, WorkerReport
from guildhall.hall.composition.environment import peek
from guildhall.hall.composition.hall import Hall, HallService
from guildhall.models.catalog import detected_keys
from guildhall.models.credentials import merge_environ
from guildhall.runs.assembly.preflight import find_warnings
from guildhall.runtimes.catalog import RUNTIMES
from guildhall.sandbox.jail import strongest_kind
from guildhall.workers.home_packages import Packages

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.workers.model import Worker, WorkerListing


class InfoService(HallService, HallInfo):
    def __init__(self, hall: Hall, status: Callable[[], ProcessStatus] | None) -> None:
        """`status` returns the state of the process that serves the hall. An embedded hall has none."""
        super().__init__(hall)
        self._status = status

    async def hello(self, root: Path) -> ClientSettings:
        try:
            return ClientSettings(env=self._hall.settings(Frame(cwd=root, root=root)).env)
        except GuildError as error:
            return ClientSettings(env=(), problem=error)

    async def status(self) -> HallStatus:
        members = peek(self._hall, Hall.members)
        process: ProcessStatus = {"pid": os.getpid(), "state": "embedded"} if self._status is None else self._status()
        return {
            **process,
            "boot": self._hall.boot,
            "version": __version__,
            "runs": self._hall.workflow_databases.live_run_count,
            "members": members.statuses() if members is not None else [],
        }

    async def doctor(self, frame: Frame) -> Sequence[Check]:
        hall = self._hall
        git = shutil.which("git")
        return [
            Check(name="python", ok=sys.version_info >= (3, 11), detail=".".join(map(str, sys.version_info[:3]))),
            _home(hall),
            _settings(hall, frame),
            _keys(hall, frame),
            _confinement(),
            Check(name="git", ok=git is not None, detail=git or "not found", hint=None if git else "Install git."),
            *await _runtimes(hall, frame),
            _workers(hall, frame),
            *_packages(hall),
            *_members(hall, frame),
            *(
                Check(name="database", ok=False, detail=f"{error.where}: {error.message}", hint=error.hint)
                for error in hall.workflow_databases.problems()
            ),
        ]


def _home(hall: Hall) -> Check:
    is_private = hall.home.database.stat().st_mode & 0o077 == 0
    hint = None if is_private else f"Other users can read the database. Run: chmod 600 {hall.home.database}"
    return Check(name="home", ok=is_private, detail=str(hall.home.path), hint=hint)


def _settings(hall: Hall, frame: Frame) -> Check:
    try:
        settings = hall.settings(frame)
    except GuildError as error:
        return Check(name="settings", ok=False, detail=error.message, hint=error.hint)
    budget = "no budget" if settings.budget is None else f"budget {settings.budget:g} USD a command"
    model = f"model {settings.model}" if settings.model else "no default model"
    refused = f"; not passed on: {', '.join(settings.env_refused)}" if settings.env_refused else ""
    return Check(name="settings", ok=True, detail=f"{model}, {budget}{refused}")


def _keys(hall: Hall, frame: Frame) -> Check:
    names = detected_keys(merge_environ(hall.environ, frame.keys))
    hint = None if names else "For other models set the key of a provider, such as ANTHROPIC_API_KEY."
    return Check(name="keys", ok=True, detail=", ".join(names) or "none found (scripted models still work)", hint=hint)


def _confinement() -> Check:
    kind = strongest_kind()
    if kind is None:
        hint = "Install bubblewrap. Without confinement, Bash and toolbox files are refused."
        return Check(name="confinement", ok=False, detail="none", hint=hint)
    hint = None if kind == "bubblewrap" else "Weaker than bubblewrap, which is not installed: see docs/tools-exec.md."
    return Check(name="confinement", ok=True, detail=kind, hint=hint)


async def _runtimes(hall: Hall, frame: Frame) -> list[Check]:
    """Return a check for each runtime that is a program. A program that is not installed is not an error."""
    checks: list[Check] = []
    programs = hall.runtimes.programs.with_variables(frame.keys)
    for runtime in RUNTIMES.values():
        if runtime.program is None:
            continue
        try:
            installed = await programs.find(runtime)
            detail = f"{runtime.summary}; {installed.version} at {installed.path}"
            check = Check(name=runtime.name, ok=True, detail=detail)
        except RuntimeMissing as error:
            is_missing = programs.locate(runtime) is None  # else the path in its variable is wrong
            detail = "not installed (optional)" if is_missing else error.message
            check = Check(name=runtime.name, ok=is_missing, detail=detail, hint=error.hint, is_missing=is_missing)
        except GuildError as error:
            check = Check(name=runtime.name, ok=False, detail=error.message, hint=error.hint)
        checks.append(check)
    return checks


def _workers(hall: Hall, frame: Frame) -> Check:
    listed = [worker for worker in hall.workers.list_workers(frame) if worker.scope != "shipped"]
    invalid = [worker.name for worker in listed if worker.error or _has_problems(hall, worker, frame)]
    check = _count_check("workers", len(listed), invalid, "List their errors: guild check")
    return check if listed else replace(check, detail="none", hint="Create one: guild worker new NAME")


def _packages(hall: Hall) -> list[Check]:
    listed = Packages(hall.home).listings()
    invalid = [package.name for package in listed if package.error is not None]
    return [_count_check("packages", len(listed), invalid, "List their errors: guild package ls")] if listed else []


def _members(hall: Hall, frame: Frame) -> list[Check]:
    members = [hall.members.details(member) for member in hall.members.registry(frame).members()]
    if not members:
        return []
    invalid = [details.member.name for details in members if details.member.error is not None]
    untrusted = [details.member.name for details in members if details.member.error is None and not details.trusted]
    check = _count_check("members", len(members), invalid, "List their errors: guild member ls", untrusted=untrusted)
    return [replace(check, hint="Review and trust them: guild trust") if untrusted and not invalid else check]


def _count_check(name: str, total: int, invalid: Sequence[str], hint: str, untrusted: Sequence[str] = ()) -> Check:
    parts = [f"{total - len(invalid) - len(untrusted)} usable"]
    parts += [f"{len(untrusted)} not trusted: {', '.join(untrusted)}"] if untrusted else []
    parts += [f"{len(invalid)} with errors: {', '.join(invalid)}"] if invalid else []
    return Check(name=name, ok=not invalid, detail=", ".join(parts), hint=hint if invalid else None)


def _has_problems(hall: Hall, listed: WorkerListing, frame: Frame) -> bool:
    """Return True if a worker of this project cannot run. Workers of other scopes may depend on another project."""
    if listed.scope != "project":
        return False
    try:
        return bool(check_worker(hall, hall.workers.find(str(listed.path), frame), frame).problems)
    except GuildError:
        return True


def check_worker(hall: Hall, worker: Worker, frame: Frame) -> WorkerReport:
    """Return a worker with the declarations that cannot be met here."""
    return WorkerReport(
        worker=worker, problems=hall.workers.preflight.find_problems(worker, frame), doubts=find_warnings(worker)
    )


async def check_worker_fully(hall: Hall, worker: Worker, frame: Frame) -> WorkerReport:
    """Return a worker with all of its problems and its plan. Execute trusted code to read its tools and its schema."""
    report, preflight = check_worker(hall, worker, frame), hall.workers.preflight
    try:
        plan = await hall.workers.planner.plan(worker, frame)
        try:
            preflight.check_schema(worker, frame)
        except GuildError:  # `problems` has it already
            pass
        else:
            await preflight.load_output_schema(worker, frame)
    except GuildError as error:
        return replace(report, problems=[*report.problems, error])
    # Problems of the kind `missing` are in `report` already, and an invalid schema was raised above.
    errors = [problem.error for problem in plan.problems if problem.kind in ("toolbox", "rule", "settings")]
    risks = [problem.text for problem in plan.problems if problem.kind in ("status", "model", "risk")]
    risks += [f"allow_workers: {call.problem}" for call in plan.calls if call.plan is None and call.through is None]
    return replace(report, plan=plan, problems=[*report.problems, *errors], doubts=[*report.doubts, *risks])
