"""Commissions, as people name and read them."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from guildhall.cli import exit_codes
from guildhall.cli.jobs import print_decisions
from guildhall.cli.screen import money
from guildhall.core.clock import SystemClock
from guildhall.core.errors import NotFound
from guildhall.core.paths import Home
from guildhall.hall.start import find, is_embedded
from guildhall.projects.model import KEPT, OURS

if TYPE_CHECKING:
    from guildhall.cli.screen import Screen
    from guildhall.hall.client import HallClient
    from guildhall.projects.commissions.model import Commission, CommissionShown

_EVERY = 0.1  # seconds between two looks at one that is asked about something
_LOOK = 2.0  # and at one that is at work, where nothing is heard of it
_ROW = 200  # characters of a reason that stands in its line
_UNDER_WAY = ("dispatched", "in_progress")


async def run_of_commission(id: str, client: HallClient) -> str:
    """The run of its last attempt."""
    one = (await client.commission(id)).commission
    if one.run is None:
        raise NotFound(f"the commission {id} is {one.status}: it has no run yet", hint=one.next_step)
    return one.run


async def until_it_rests(id: str, client: HallClient, *, hall: bool = True) -> tuple[int, CommissionShown]:
    """Waits until it has ended or waits for a person; the exit code, and how it stands.

    Without a hall nobody lets it begin or go on: that is said, and not waited for.
    """
    rests = False
    while True:
        shown = await client.commission(id)
        if shown.commission.status not in _UNDER_WAY:
            return code_of(shown), shown
        if await _is_put_away(shown, client, begins=hall and not rests):
            return exit_codes.NEEDS_YOU, shown
        if rests:  # somebody is asked, and may answer at once
            await SystemClock().sleep(_EVERY)
        rests = await client.commission_rests(id, within=_LOOK)


async def _is_put_away(shown: CommissionShown, client: HallClient, *, begins: bool) -> bool:
    run = shown.commission.run
    if run is None:
        return not begins
    status = (await client.show(run)).run.status
    return status in ("lost", "parked") or (status == "waiting" and bool(shown.waiting))


def code_of(shown: CommissionShown) -> int:
    status = shown.commission.status
    if status == "completed":
        return exit_codes.DONE
    return exit_codes.NEEDS_YOU if shown.waiting or status in ("pending", "blocked") else exit_codes.FAILED


def has_hall() -> bool:
    """Whether there is one that goes on by itself."""
    environ = dict(os.environ)
    return not is_embedded(environ) and find(Home.locate(environ)) is not None


async def say_nobody_is_at_it(shown: CommissionShown, client: HallClient, screen: Screen) -> None:
    """Says it of one that is under way by its record alone."""
    one = shown.commission
    if one.status == "dispatched" and not has_hall():
        screen.note(
            f"No hall is there to let it begin. The next command that needs one starts it: guild resume {one.id}"
        )
    elif one.status == "in_progress" and one.run and (await client.show(one.run)).run.status in ("lost", "parked"):
        screen.note(f"Nobody is at it. Let it go on: guild resume {one.id}")


def print_line(commission: Commission, screen: Screen) -> list[str]:
    """A row of the listing."""
    far = commission.summary if commission.status == "in_progress" and not commission.held else None
    more = screen.one_line(far or commission.reason or "", 60)
    title = screen.one_line(commission.title, 50)
    who = [commission.project, commission.worker, f"by {commission.by}"]
    return [commission.id, commission.status, *who, title, more]


def print_commission(shown: CommissionShown, screen: Screen) -> None:
    """All about one."""
    one, around = shown.commission, shown.neighbours
    rows = [
        ["commission", one.id],
        ["title", screen.exactly(one.title)],
        ["project", one.project],
        ["worker", one.worker],
        ["status", one.status + (" (waits for you)" if shown.waiting else "")],
        ["why", screen.exactly(one.reason or "")],
        ["by", f"{one.by}, in {one.made_by.partition('#')[0]}" if one.made_by else one.by],
        ["created", one.created_at],
        ["attempt", str(one.attempt or "")],
        ["run", one.run or ""],
        ["branch", _branch(one)],
        ["checkout", screen.exactly(shown.worktree or "")],
        ["cost", money(shown.cost_usd) if one.run else ""],
        *(["depends on", path + (" (not there)" if path in around.missing else "")] for path in one.draft.dependencies),
        *(["must give", path] for path in one.draft.artifacts),
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
    for doubt in shown.doubts:
        screen.note(doubt, "yellow")
    _print_next(shown, screen)


def _branch(one: Commission) -> str:
    """Where its work is: once it is merged, its branch is kept out of the way."""
    if one.branch is None or one.status != "completed":
        return one.branch or ""
    return f"claude/main; its own: {KEPT}{one.branch.removeprefix(OURS)}"


def _print_timeline(shown: CommissionShown, screen: Screen) -> None:
    """Each line with its reason; what is long, such as a reviewer's comments, stands below it, whole."""
    wide = max((len(line.after or "") for line in shown.timeline), default=0)
    for line in shown.timeline:
        is_long = len(line.reason) > _ROW or "\n" in line.reason
        said = "" if is_long else screen.one_line(line.reason, _ROW)
        screen.result(f"  {line.at}  {line.after or '':<{wide}}  {said}".rstrip())
        if is_long:
            screen.result(screen.barred(line.reason, wrapped=screen.out.isatty()))


def _print_failed_checks(shown: CommissionShown, screen: Screen) -> None:
    """What the checks have said that failed last, as long as it has not ended well."""
    looked = [line.data["checks"] for line in shown.timeline if line.data.get("checks")]
    if not looked or shown.commission.status == "completed":
        return
    for check in looked[-1]:
        if not check["passed"]:
            screen.heading(f"\n{screen.exactly(check['command'])}")
            screen.result(screen.barred(check["output"], wrapped=screen.out.isatty()))


def _print_said(shown: CommissionShown, screen: Screen) -> None:
    if shown.asked:
        screen.heading("\nquestions")
        for one in shown.asked:
            screen.result(f"{one.ask}: {one.question}")
            screen.result(f"  {one.answer}" if one.answer else f"  guild answer {one.ask} ...")
    print_decisions(shown.decisions, screen)


def _print_next(shown: CommissionShown, screen: Screen) -> None:
    one = shown.commission
    if one.status == "pending":
        screen.note(f"Let it begin: guild commission dispatch {one.id}")
    elif one.status == "blocked":
        screen.note(f"Once what it waits for is there: guild commission dispatch {one.id}")
    elif one.status in ("failed", "cancelled"):
        screen.note(f"Try it anew: guild commission redispatch {one.id}")
    for ask in shown.waiting:
        screen.note(f"It waits for an answer: guild show {ask}")
