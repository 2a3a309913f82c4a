"""Commission output: prints commissions, and waits until a commission has ended or needs the user.

Does not create or change commissions (see `cli.commands.projects.commission`).
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from guildhall.cli import exit_codes
from guildhall.cli.format.jobs import print_decisions
from guildhall.cli.screen import Screen, money
from guildhall.core.clock import SystemClock
from guildhall.core.paths import Home
from guildhall.hall.client.discovery import find, is_embedded
from guildhall.projects.model import KEPT, OURS

if TYPE_CHECKING:
    from guildhall.hall.client.interface import HallClient
    from guildhall.projects.commissions.model import Commission, CommissionDetails

_POLL = 0.1  # seconds between two looks while an ask is open
_WAIT = 2.0  # seconds that one request waits for a change
_MAX_LINE = 200  # characters of a reason that is printed on the line of its timeline entry
_ACTIVE = ("dispatched", "in_progress")


async def wait_idle(id: str, client: HallClient, *, hall: bool = True) -> tuple[int, CommissionDetails]:
    """Wait until a commission has ended or needs the user. Return the exit code and the details.

    Without a hall nothing starts or resumes it, so there is nothing to wait for.
    """
    idle = False
    while True:
        shown = await client.commissions.get(id)
        if shown.commission.status not in _ACTIVE:
            return code_of(shown), shown
        if await _is_stopped(shown, client, can_start=hall and not idle):
            return exit_codes.NEEDS_YOU, shown
        if idle:  # an ask is open, and may be answered any time
            await SystemClock().sleep(_POLL)
        idle = await client.commissions.wait_idle(id, within=_WAIT)


async def _is_stopped(shown: CommissionDetails, client: HallClient, *, can_start: bool) -> bool:
    run = shown.commission.run
    if run is None:
        return not can_start
    status = (await client.runs.get(run)).run.status
    return status in ("lost", "parked") or (status == "waiting" and bool(shown.waiting))


def code_of(shown: CommissionDetails) -> int:
    status = shown.commission.status
    if status == "completed":
        return exit_codes.DONE
    return exit_codes.NEEDS_YOU if shown.waiting or status in ("pending", "blocked") else exit_codes.FAILED


def is_hall_running() -> bool:
    """Return True if a hall runs in the background."""
    environ = dict(os.environ)
    return not is_embedded(environ) and find(Home.locate(environ)) is not None


async def warn_if_stopped(shown: CommissionDetails, client: HallClient, screen: Screen) -> None:
    """Print a note if an active commission makes no progress because nothing executes it."""
    one = shown.commission
    if one.status == "dispatched" and not is_hall_running():
        screen.note(f"No hall is running to start it. Start one: guild resume {one.id}")
    elif one.status == "in_progress" and one.run and (await client.runs.get(one.run)).run.status in ("lost", "parked"):
        screen.note(f"Its run has stopped. Continue: guild resume {one.id}")


def commission_row(commission: Commission, screen: Screen) -> list[str]:
    """Return a row of the listing."""
    progress = commission.summary if commission.status == "in_progress" and commission.hold is None else None
    more = screen.one_line(progress or commission.explanation, 60)
    title = screen.one_line(commission.title, 50)
    who = [commission.project, commission.worker, f"by {commission.by}"]
    return [commission.id, commission.status, *who, title, more]


def print_commission(shown: CommissionDetails, screen: Screen) -> None:
    """Print everything about a commission."""
    one, around = shown.commission, shown.neighbours
    rows = [
        ["commission", one.id],
        ["title", screen.exactly(one.title)],
        ["project", one.project],
        ["worker", one.worker],
        ["status", one.status + (" (needs you)" if shown.waiting else "")],
        ["why", screen.exactly(one.explanation)],
        ["by", f"{one.by}, in {one.made_by.partition('#')[0]}" if one.made_by else one.by],
        ["created", one.created_at],
        ["attempt", str(one.attempt or "")],
        ["run", one.run or ""],
        ["branch", _branch(one)],
        ["checkout", screen.exactly(shown.worktree or "")],
        ["cost", money(shown.cost_usd) if one.run else ""],
        *(["depends on", path + (" (missing)" if path in around.missing else "")] for path in one.draft.dependencies),
        *(["artifact", path] for path in one.draft.artifacts),
        *(["linked", path] for path in one.draft.linked),
        *(["check", screen.exactly(command)] for command in one.draft.checks),
        ["reviewer", one.draft.reviewer or ""],
        ["after", ", ".join(around.after)],
        ["before", ", ".join(around.before)],
    ]
    screen.table([row for row in rows if row[1]])
    for name, text in (("prompt", one.draft.prompt), ("summary", one.summary), ("result", one.result)):
        if text:
            screen.heading(f"\n{name}")
            screen.result(text if isinstance(text, str) else json.dumps(text, indent=2, ensure_ascii=False))
    _print_said(shown, screen)
    screen.heading("\ntimeline")
    _print_timeline(shown, screen)
    _print_failed_checks(shown, screen)
    for warning in shown.warnings:
        screen.note(warning, "yellow")
    _print_next(shown, screen)


def _branch(one: Commission) -> str:
    """Return where the work is: on its branch, or merged, with the branch archived."""
    if one.branch is None or one.status != "completed":
        return one.branch or ""
    return f"claude/main; archived: {KEPT}{one.branch.removeprefix(OURS)}"


def _print_timeline(shown: CommissionDetails, screen: Screen) -> None:
    """Print the timeline. Long reasons, such as a reviewer's comments, are printed in full below their line."""
    wide = max((len(line.after or "") for line in shown.timeline), default=0)
    for line in shown.timeline:
        is_long = len(line.reason) > _MAX_LINE or len(line.reason.splitlines()) > 1
        reason = "" if is_long else screen.one_line(line.reason, _MAX_LINE)
        screen.result(f"  {line.at}  {line.after or '':<{wide}}  {reason}".rstrip())
        if is_long:
            screen.result(screen.barred(line.reason, wrapped=screen.out.isatty()))


def _print_failed_checks(shown: CommissionDetails, screen: Screen) -> None:
    """Print the output of the checks that failed last, unless the commission is completed."""
    looked = [line.data["checks"] for line in shown.timeline if line.data.get("checks")]
    if not looked or shown.commission.status == "completed":
        return
    for check in looked[-1]:
        if not check["passed"]:
            screen.heading(f"\n{screen.exactly(check['command'])}")
            screen.result(screen.barred(check["output"], wrapped=screen.out.isatty()))


def _print_said(shown: CommissionDetails, screen: Screen) -> None:
    if shown.asked:
        screen.heading("\nquestions")
        for one in shown.asked:
            screen.result(f"{one.ask}: {one.question}")
            screen.result(f"  {one.answer}" if one.answer else f"  guild answer {one.ask} ...")
    print_decisions(shown.decisions, screen)


def _print_next(shown: CommissionDetails, screen: Screen) -> None:
    one = shown.commission
    if one.status == "pending":
        screen.note(f"Start it: guild commission dispatch {one.id}")
    elif one.status == "blocked":
        screen.note(f"When its dependencies exist: guild commission dispatch {one.id}")
    elif one.status in ("failed", "cancelled"):
        screen.note(f"Try again: guild commission redispatch {one.id}")
    for ask in shown.waiting:
        screen.note(f"Waiting for your answer: guild show {ask}")
