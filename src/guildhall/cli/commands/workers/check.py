"""`guild check [NAME|FILE|DIR ...]`: checks workers, workflows, scripts, packages and projects, and prints all errors.

Without a name, it checks this project's files, and all installed packages and registered projects. Does not run
anything (see `cli.commands.runs.test`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from guildhall.cli import exit_codes
from guildhall.cli.command import JSON, Context, argument, command
from guildhall.core.errors import ErrorInfo, GuildError
from guildhall.core.yaml import MAX_BYTES
from guildhall.hall.testrun.files import TESTS, tests_in
from guildhall.workflow.target import MAIN, WORKFLOW_SUFFIXES, find_workflow_files, is_workflow_file

if TYPE_CHECKING:
    from guildhall.cli.screen import Screen

Kind = Literal["worker", "workflow", "script", "package", "project"]
_PYPROJECT = "pyproject.toml"
_SCRIPT_FIELD = re.compile(rb"^[\"']?(workers|test)[\"']? *:", re.MULTILINE)


@dataclass(kw_only=True)
class Report:
    """The result of checking one worker, workflow, script, package or project."""

    kind: Kind
    name: str
    file: str | None = None
    errors: list[ErrorInfo] = field(default_factory=list[Any])
    warnings: list[str] = field(default_factory=list[str])
    risk: str | None = None
    exit_code: int = exit_codes.DONE

    def add(self, error: GuildError) -> None:
        """Add an error and the further errors of the same file."""
        first = error.as_dict()
        others = first.pop("others", ())
        self.errors += [first, *(cast("ErrorInfo", {"code": error.code, **other}) for other in others)]
        self.exit_code = self.exit_code or error.exit_code


@command(
    argument(
        "names",
        metavar="NAME|FILE|DIR",
        nargs="*",
        help="a worker, package or project; a YAML file; a folder (default: everything)",
    ),
    JSON,
)
async def check(ctx: Context) -> int:
    await ctx.connect("read")
    checker = _Checker(ctx)
    reports = [report for name in ctx.args.names for report in await checker.check(name)]
    if not ctx.args.names:
        reports = await checker.check_all()
    ctx.print(reports, _print, data=[_as_dict(one) for one in reports])
    return next((one.exit_code for one in reports if one.exit_code), exit_codes.DONE)


class _Checker:
    """Finds the workers, files, packages and projects of the arguments, and checks them."""

    def __init__(self, ctx: Context) -> None:
        self._client = ctx.client
        self._frame = ctx.frame

    async def check_all(self) -> list[Report]:
        reports = await self._check_files(self._frame.root)
        reports += [await self._check_package(one.name) for one in await self._client.packages.list()]
        return reports + [await self._check_project(one.name) for one in await self._client.projects.list()]

    async def check(self, name: str) -> list[Report]:
        """Return the reports about everything that has this name or path."""
        path = self._frame.cwd / Path(name).expanduser()  # noqa: ASYNC240 - a command has nothing else to do
        with suppress(OSError, ValueError):  # ValueError: a NUL in the path
            if path.is_dir() and ("/" in name or name in (".", "..")):
                return (
                    [await self._check_package(name)] if (path / _PYPROJECT).exists() else await self._check_files(path)
                )
            if path.suffix in WORKFLOW_SUFFIXES and path.is_file():
                return [await self._check_file(path, name)]
        reports: list[Report] = []
        if name in [one.name for one in await self._client.packages.list()]:
            reports.append(await self._check_package(name))
        if name in [one.name for one in await self._client.projects.list()]:
            reports.append(await self._check_project(name))
        workers = await self._client.workers.list(self._frame)
        is_own_worker = any(one.name == name and one.scope != "package" for one in workers)
        return [*reports, await self._check_worker(name)] if is_own_worker or not reports else reports

    async def _check_files(self, folder: Path) -> list[Report]:
        """Return reports about the workers, the workflows and the tests in a folder of a project."""
        listed = await self._client.workers.list(self._frame)
        workers = [one.path for one in listed if one.scope == "project"]
        files: Iterable[Path] = (
            *workers,
            *find_workflow_files(folder),
            *tests_in(folder / TESTS),
            *sorted(path for path in (folder / "scripts").glob("*") if path.suffix in WORKFLOW_SUFFIXES),
        )
        files = dict.fromkeys(file for file in files if file.is_relative_to(folder))
        return [await self._check_file(file, str(file)) for file in files]

    async def _check_file(self, path: Path, name: str) -> Report:
        if is_workflow_file(path):
            return await self._check_workflow(name)
        return _check_script(path, name) if _is_script(path) else await self._check_worker(name)

    async def _check_worker(self, name: str) -> Report:
        """Check a worker and everything that it needs. The risk includes all workers that it may call."""
        report = Report(kind="worker", name=Path(name).stem if "/" in name else name)
        try:
            checked = await self._client.workers.check(name, self._frame)
        except GuildError as error:
            report.file = error.where
            report.add(error)
            return report
        report.name, report.file = checked.worker.name, checked.worker.place
        report.warnings += checked.doubts
        for error in checked.problems:
            report.add(error)
        if (plan := checked.plan) is not None:
            report.risk = (plan.risk_with_calls or plan.risk).as_dict()["text"]
        return report

    async def _check_workflow(self, name: str) -> Report:
        from guildhall.runs.model import RunRequest

        report = Report(kind="workflow", name=Path(name).stem, file=name)
        try:
            request = RunRequest(worker=name, input="")
            plan = await self._client.workflows.plan(request, self._frame, tag=MAIN, params={})
            report.warnings += plan.warnings
            for agent in plan.agents:
                for problem in agent.plan.problems:
                    if problem.kind in ("status", "model", "risk"):
                        report.warnings.append(f"agent {agent.name}: {problem.text}")
                    else:
                        report.add(problem.error)
        except GuildError as error:
            report.add(error)
        return report

    async def _check_package(self, name: str) -> Report:
        report = Report(kind="package", name=name)
        try:
            if "/" in name or name in (".", ".."):
                await self._client.packages.inspect(self._frame.cwd / name)
            else:
                problems = (await self._client.packages.get(name, self._frame)).problems
                report.errors += [ErrorInfo(code="error", message=problem) for problem in problems]
        except GuildError as error:
            report.add(error)
        report.exit_code = exit_codes.FAILED if report.errors else exit_codes.DONE
        return report

    async def _check_project(self, name: str) -> Report:
        report = Report(kind="project", name=name)
        for problem in await self._client.projects.check(name):
            if problem.blocks:
                report.errors.append(ErrorInfo(code="error", message=problem.message, hint=problem.hint or ""))
            else:
                report.warnings.append(f"{problem.message} {problem.hint or ''}".rstrip())
        report.exit_code = exit_codes.FAILED if report.errors else exit_codes.DONE
        return report


def _is_script(path: Path) -> bool:
    """Return True if a file has a field that only model scripts have."""
    with path.open("rb") as file:
        return _SCRIPT_FIELD.search(file.read(MAX_BYTES)) is not None


def _check_script(path: Path, name: str) -> Report:
    from guildhall.models.scripted.source import load_script

    report = Report(kind="script", name=path.stem, file=name)
    try:
        load_script(path)
    except GuildError as error:
        report.add(error)
    return report


def _as_dict(report: Report) -> dict[str, Any]:
    data = asdict(report)
    del data["exit_code"]
    return {**data, "ok": not report.errors}


def _print(reports: list[Report], screen: Screen) -> None:
    for one in reports:
        for error in one.errors:
            where = error.get("where") or (one.name if one.kind == "project" else "")
            screen.note(f"guild: {screen.exact(f'{where}: ' if where else '')}{screen.exact(error['message'])}", "red")
            if hint := error.get("hint"):
                screen.note(hint)
        for warning in one.warnings:
            screen.note(f"{one.file or one.name}: {screen.exact(warning)}", "yellow")
        screen.result(f"{'ok' if not one.errors else 'invalid':<7}  {one.kind} {one.name}  {one.file or ''}".rstrip())
        if one.risk:
            screen.result(f"         exfiltration risk: {one.risk}")
    if not reports:
        screen.note("Nothing to check here.")
    elif invalid := sum(bool(one.errors) for one in reports):
        screen.note(f"{invalid} of {len(reports)} are invalid.")
