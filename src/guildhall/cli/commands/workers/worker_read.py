"""`guild worker ls`, `show` and `validate`: what workers there are and whether their files are right."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guildhall.cli import exit_codes
from guildhall.cli.commands.runs.run import worker_name
from guildhall.cli.connection import with_hall
from guildhall.core.errors import GuildError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from guildhall.cli.screen import Screen
    from guildhall.core.frame import Frame
    from guildhall.hall.client.interface import HallClient
    from guildhall.policy.risk import Risk
    from guildhall.runs.plan import Plan
    from guildhall.workers.model import Listed, Worker


def arguments(parser: argparse.ArgumentParser) -> None:
    match parser.get_default("command"):
        case "worker show":
            parser.add_argument("name", metavar="NAME|FILE", help="a worker's name, or its file")
        case "worker validate":
            parser.add_argument("names", metavar="NAME|FILE", nargs="*", help="workers or files; none: all workers")
        case _:
            pass
    parser.add_argument("--json", action="store_true", help="print JSON")


def main(args: argparse.Namespace, screen: Screen) -> int:
    async def work(client: HallClient, frame: Frame) -> int:
        match args.command:
            case "worker show":
                return await _show(worker_name(args.name), args.json, client, frame, screen)
            case "worker validate":
                return await _validate(args, client, frame, screen)
            case _:
                listed = await client.workers.list(frame)
                screen.json([line.as_dict() for line in listed]) if args.json else _list(listed, screen)
                return exit_codes.DONE

    return with_hall(work, screen, readonly=True)


def _list(listed: Sequence[Listed], screen: Screen) -> None:
    if not listed:
        screen.note("There are no workers here. `guild worker new NAME` makes one, `guild init` a starter folder.")
        return
    rows = [["name", "status", "from", "what it is for"]]
    for line in listed:
        status = "broken" if line.error else f"{line.status}, locked" if line.locked else str(line.status)
        rows.append([line.name, status, line.scope, line.error or line.description or ""])
    screen.table(rows)


async def _show(name: str, as_json: bool, client: HallClient, frame: Frame, screen: Screen) -> int:
    worker = await client.workers.get(name, frame)
    plan, error = await _plan(name, client, frame)
    if as_json:
        schema = plan.schema if plan else None
        screen.json({**worker.as_dict(), "output_schema": schema, "plan": plan.as_dict() if plan else None})
    else:
        _print(worker, screen)
        _print_plan(plan, screen)
    if error is not None:
        screen.note(f"guild: there is no plan: {error}", "red")
    return exit_codes.DONE


async def _plan(name: str, client: HallClient, frame: Frame) -> tuple[Plan | None, GuildError | None]:
    """What the worker could do. Settings that are wrong keep nobody from looking at the worker."""
    from guildhall.runs.model import RunRequest

    try:
        return await client.runs.plan(RunRequest(worker=name, input=""), frame), None
    except GuildError as error:
        return None, error


def _print_plan(plan: Plan | None, screen: Screen) -> None:
    import json

    if plan is None:
        return
    screen.heading("\nplan")
    screen.result(plan.text())
    if plan.schema is not None:
        screen.heading(f"\noutput schema ({screen.one_line(plan.schema_ref or '', 400)})")
        screen.result(json.dumps(plan.schema, indent=2, ensure_ascii=False))


def _print(worker: Worker, screen: Screen) -> None:
    definition = worker.definition.model_dump(mode="json", exclude_unset=True)
    told = {name: value for name, value in definition.items() if name not in ("name", "instructions", "description")}
    screen.table(
        [
            ["worker", worker.name],
            ["what it is for", worker.description or ""],
            ["file", f"{worker.place} ({worker.scope})"],
            ["status", _status(worker)],
            ["attachments", str(worker.definition.attachment_policy)],
        ]
    )
    for name, value in told.items():
        if name not in ("status", "locked", "attachment_policy"):
            screen.result(f"{name}: {_short(value)}")
    if worker.activate:
        screen.result(f"activate: {worker.activate}")
    screen.heading("\ninstructions")
    screen.result(worker.instructions)


def _status(worker: Worker) -> str:
    if worker.changed:
        return f"{worker.status}, locked, and its file is not what was locked: guild worker unlock {worker.name}"
    return f"{worker.status}, locked" if worker.locked else worker.status


def _short(value: Any) -> str:
    import json

    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


async def _validate(args: argparse.Namespace, client: HallClient, frame: Frame, screen: Screen) -> int:
    names = [worker_name(name) for name in args.names]
    names = names or [str(line.path) for line in await client.workers.list(frame) if line.scope == "project"]
    found = [await _checked(name, client, frame) for name in names]
    if args.json:
        screen.json([line.as_dict() for line in found])
    else:
        for line in found:
            _print_checked(line, screen)
        if not found:
            screen.note("There are no workers in this project to check.")
    wrong = [line.errors[0].exit_code for line in found if line.errors]
    return wrong[0] if wrong else exit_codes.DONE


@dataclass(frozen=True, kw_only=True)
class _Line:
    """What a check found out about one worker."""

    name: str
    file: str | None
    errors: Sequence[GuildError]
    doubts: Sequence[str] = ()
    risk: Risk | None = None  # the verdict on the three together, of it and all that it may call

    def as_dict(self) -> dict[str, Any]:
        errors = [error.as_dict() for error in self.errors]
        first = errors[0] if errors else None
        told = {"name": self.name, "file": self.file, "ok": not errors, "error": first}
        risk = self.risk.as_dict() if self.risk else None
        return {**told, "errors": errors, "doubts": list(self.doubts), "risk": risk}


async def _checked(name: str, client: HallClient, frame: Frame) -> _Line:
    try:
        checked = await client.workers.check(name, frame)
    except GuildError as error:
        return _Line(name=name, file=error.where, errors=[error])
    worker, plan = checked.worker, checked.plan
    risk = (plan.risk_with_calls or plan.risk) if plan else None
    return _Line(name=worker.name, file=worker.place, errors=checked.problems, doubts=checked.doubts, risk=risk)


def _print_checked(line: _Line, screen: Screen) -> None:
    for error in line.errors:
        screen.note(f"guild: {error.where or line.name}: {error.message}", "red")
        if error.hint:
            screen.note(error.hint)
    for doubt in line.doubts:
        screen.note(f"{line.file}: {doubt}", "yellow")
    name = Path(line.name).stem if "/" in line.name else line.name  # of one that cannot be read only the file is known
    screen.result(f"{'wrong' if line.errors else 'ok'}  {name}  {line.file or ''}".rstrip())
    if line.risk:
        screen.result(f"    the three together: {line.risk.text}")
