"""Project output: prints commissions and meetings, and waits until a commission has ended or needs the user.

Does not change commissions or meetings (see `cli.commands.projects`).

Invariant: foreign text is printed behind bars or on one line, so that it cannot pass for output of guild.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from guildhall.cli import exit_codes
from guildhall.cli.command import find_running
from guildhall.cli.format.jobs import print_decisions
from guildhall.cli.screen import Screen, money
from guildhall.core.clock import SystemClock
from guildhall.projects.model import ARCHIVE_REFS, BRANCH_PREFIX

if TYPE_CHECKING:
    from guildhall.cli.command import Context
    from guildhall.hall.client.interface import HallClient
    from guildhall.projects.commissions.model import Commission, CommissionDetails
    from guildhall.projects.meetings.model import Exchange, Meeting, MeetingDetails
    from guildhall.runs.limits import LimitName

_POLL_S = 0.1  # while an ask is open
_WAIT_S = 2.0  # maximum duration of one request
_MAX_EXCHANGES = 3  # printed exchanges; --json has all of them
_MAX_LINE_CHARS = 200  # a longer reason is printed below its line of the timeline


async def wait_idle(
    id: str, client: HallClient, screen: Screen, *, has_hall: bool = True
) -> tuple[int, CommissionDetails]:
    """Wait until a commission has ended or needs the user. Return the exit code and the details.

    Print each change of its status or progress. `has_hall`: a hall is running. Without one nothing starts the
    commission, so the function returns at once.
    """
    is_idle, printed = False, ""
    while True:
        details = await client.commissions.get(id)
        status = details.commission.status
        progress = f"{id} {status}: {screen.one_line(details.commission.summary or details.commission.title, 100)}"
        if progress != printed and status in ("dispatched", "in_progress"):
            screen.note(progress, "dim")
            printed = progress
        if status == "completed":
            return exit_codes.DONE, details
        if status not in ("dispatched", "in_progress"):
            needs_you = details.waiting or status in ("pending", "blocked")
            return exit_codes.NEEDS_YOU if needs_you else exit_codes.FAILED, details
        if await _is_stopped(details, client, can_start=has_hall and not is_idle):
            return exit_codes.NEEDS_YOU, details
        if is_idle:  # an ask is open, and may be answered any time
            await SystemClock().sleep(_POLL_S)
        is_idle = await client.commissions.wait_idle(id, within=_WAIT_S)


async def _is_stopped(details: CommissionDetails, client: HallClient, *, can_start: bool) -> bool:
    run = details.commission.run
    if run is None:
        return not can_start
    status = (await client.runs.get(run)).run.status
    return status in ("interrupted", "paused") or (status == "waiting" and bool(details.waiting))


async def warn_if_stopped(details: CommissionDetails, client: HallClient, screen: Screen) -> None:
    """Print a note if an active commission makes no progress because nothing executes it."""
    commission = details.commission
    if commission.status == "dispatched" and find_running() is None:
        screen.note(f"No hall is running to start it. Start one: guild resume {commission.id}")
    elif (
        commission.status == "in_progress"
        and commission.run
        and (await client.runs.get(commission.run)).run.status in ("interrupted", "paused")
    ):
        screen.note(f"Its run has stopped. Continue: guild resume {commission.id}")


COMMISSION_HEAD = ("id", "status", "project", "worker", "created by", "title", "progress or reason")


def commission_row(commission: Commission, screen: Screen) -> list[str]:
    """Return a row of the listing."""
    progress = commission.summary if commission.status == "in_progress" and commission.hold is None else None
    more = screen.one_line(progress or commission.explanation, 60)
    title = screen.one_line(commission.title, 50)
    return [commission.id, commission.status, commission.project, commission.worker, commission.by, title, more]


def print_commission(details: CommissionDetails, screen: Screen) -> None:
    """Print everything about a commission."""
    commission, draft, around = details.commission, details.commission.draft, details.neighbours
    rows = [
        ["commission", commission.id],
        ["title", screen.exact(commission.title)],
        ["project", commission.project],
        ["worker", commission.worker],
        ["status", commission.status + (" (needs you)" if details.waiting else "")],
        ["reason", screen.exact(commission.explanation)],
        ["by", f"{commission.by}, in {commission.made_by.partition('#')[0]}" if commission.made_by else commission.by],
        ["created", commission.created_at],
        ["attempt", str(commission.attempt or "")],
        ["run", commission.run or ""],
        ["branch", _branch(commission)],
        ["changes", str(commission.diffstat or "")],
        ["checkout", screen.exact(details.worktree or "")],
        ["cost", money(details.cost_usd) if commission.run else ""],
        ["limits", _describe_limits(draft.limits)],
        *(["depends on", path + (" (missing)" if path in around.missing else "")] for path in draft.dependencies),
        *(["required file", path] for path in draft.artifacts),
        *(["linked", path] for path in draft.linked),
        *(["check", screen.exact(command)] for command in draft.checks),
        ["reviewer", draft.reviewer or ""],
        ["after", ", ".join(around.after)],
        ["before", ", ".join(around.before)],
    ]
    screen.facts(rows)
    for name, text in (
        ("prompt", draft.prompt),
        ("summary", commission.summary),
        ("result", commission.result),
    ):
        if text:
            screen.heading(f"\n{name}")
            screen.result(text if isinstance(text, str) else json.dumps(text, indent=2, ensure_ascii=False))
    if details.asked:
        screen.heading("\nquestions")
    for ask in details.asked:
        screen.result(f"{ask.ask}: {ask.question}")
        screen.result(f"  {ask.answer}" if ask.answer else f"  guild answer {ask.ask} ...")
    print_decisions(details.decisions, screen)
    screen.heading("\ntimeline")
    _print_timeline(details, screen)
    _print_failed_checks(details, screen)
    for warning in details.warnings:
        screen.note(warning, "yellow")
    if commission.status in ("pending", "blocked", "failed", "cancelled"):
        print_next_command(commission, screen, is_edit=True)
    for ask in details.waiting:
        screen.note(f"Waiting for your answer: guild show {ask}")


async def print_new_state(
    ctx: Context, commission: Commission, *, text: str = "", wait: bool = False, is_edit: bool = False
) -> int:
    """Print the new state of a commission, with `wait` once it has ended, and return the exit code."""
    id, status = commission.id, commission.status
    if wait and status in ("dispatched", "in_progress"):
        ctx.screen.note(f"{id} is {status}. Ctrl-C stops waiting, not the work: guild wait {id}", "dim")
        code, details = await wait_idle(id, ctx.client, ctx.screen)
        ctx.print(details, print_commission)
        return code
    ctx.print(commission, text or f"{id} is {status}")
    if not ctx.as_json:
        if commission.draft.linked and status in ("pending", "blocked"):
            for warning in (await ctx.client.commissions.get(id)).warnings:
                ctx.screen.note(ctx.screen.one_line(warning, 300), "yellow")
        print_next_command(commission, ctx.screen, is_edit=is_edit)
    if wait and status in ("pending", "blocked"):
        return exit_codes.NEEDS_YOU
    return exit_codes.FAILED if status == "failed" and (wait or not is_edit) else exit_codes.DONE


def print_next_command(commission: Commission, screen: Screen, *, is_edit: bool = False) -> None:
    """Print the command that continues a commission."""
    id, again = commission.id, f"Retry: guild retry {commission.id}"
    hints = {
        "pending": f"Start it: guild dispatch {id}",
        "blocked": f"When its dependencies exist: guild dispatch {id}",
        "dispatched": f"It is queued: guild wait {id}",
        "in_progress": f"It runs in the background: guild show {id}, guild wait {id}",
        "failed": again if is_edit else f"It failed: {screen.exact(commission.reason or '')}\n{again}",
        "cancelled": again,
    }
    if commission.status in hints:
        screen.note(hints[commission.status], "dim")


def _branch(commission: Commission) -> str:
    """Return the branch of a commission, or claude/main and the archived branch if it is merged."""
    if commission.branch is None or commission.status != "completed":
        return commission.branch or ""
    return f"claude/main; archived: {ARCHIVE_REFS}{commission.branch.removeprefix(BRANCH_PREFIX)}"


def _print_timeline(details: CommissionDetails, screen: Screen) -> None:
    """Print the timeline. Long reasons, such as a reviewer's comments, are printed in full below their line."""
    width = max((len(line.after or "") for line in details.timeline), default=0)
    for line in details.timeline:
        is_long = len(line.reason) > _MAX_LINE_CHARS or len(line.reason.splitlines()) > 1
        reason = "" if is_long else screen.one_line(line.reason, _MAX_LINE_CHARS)
        screen.result(f"  {line.at}  {line.after or '':<{width}}  {reason}".rstrip())
        if is_long:
            screen.result(screen.quote_block(line.reason))


def _print_failed_checks(details: CommissionDetails, screen: Screen) -> None:
    """Print the output of the checks that failed last, unless the commission is completed."""
    results = [line.data["checks"] for line in details.timeline if line.data.get("checks")]
    if not results or details.commission.status == "completed":
        return
    for check in results[-1]:
        if not check["passed"]:
            screen.heading(f"\n{screen.exact(check['command'])}")
            screen.result(screen.quote_block(check["output"]))


def print_meeting(details: MeetingDetails, screen: Screen) -> None:
    """Print everything about a meeting except older exchanges."""
    meeting = details.meeting
    rows = [
        ["meeting", meeting.id],
        ["worker", meeting.worker],
        ["project", meeting.project],
        ["topic", screen.exact(meeting.topic)],
        ["status", _describe_status(details)],
        ["by", meeting.by + (f" ({meeting.made_by})" if meeting.made_by else "")],
        ["opened", meeting.created_at],
        ["sessions", str(meeting.session_count) if meeting.session_count > 1 else ""],
        ["run", meeting.run or ""],
        ["branch", meeting.branch or ""],
        ["checkout", screen.exact(details.worktree or "")],
        ["cost", money(details.cost_usd) if meeting.run else ""],
        ["limits", _describe_limits(meeting.limits)],
        *(["linked", screen.exact(path)] for path in meeting.linked),
        ["notes", meeting.notes or ""],
    ]
    screen.facts(rows)
    screen.section("summary", meeting.summary)
    print_decisions(details.decisions, screen)
    if details.followups:
        screen.heading("\nfollow-ups")
        for one in details.followups:
            worker = f" ({one.worker})" if one.worker else ""
            screen.result(f"{one.title}{worker}\n{screen.quote_block(one.prompt)}")
    if last := details.exchanges[-_MAX_EXCHANGES:]:
        screen.heading(f"\nlast messages ({len(last)} of {len(details.exchanges)})")
        for exchange in last:
            print_exchange(exchange, meeting, screen)
    for warning in details.warnings:
        screen.note(warning, "yellow")
    if meeting.status == "open":
        screen.note(f"Continue: guild meet {meeting.id}    Close it: guild meet {meeting.id} --close")
    elif meeting.status == "requested":
        screen.note(f"Accept it: guild answer {meeting.id} yes (or no, or a date to be asked again)")


def _describe_limits(limits: Mapping[str, Any]) -> str:
    """Return the limits that were given at the start. `guild show RUN` has those in force."""
    from guildhall.runs.limits import format_limit

    names: tuple[LimitName, ...] = ("max_turns", "max_tokens", "max_budget_usd", "budget")
    return ", ".join(format_limit(name, limits[name]) for name in names if name in limits)


def print_exchange(exchange: Exchange, meeting: Meeting, screen: Screen) -> None:
    """Print the user message and the answer."""
    if exchange.user_message:
        screen.result(f"you:\n{screen.quote_block(exchange.user_message)}")
    if exchange.answer:
        screen.result(f"{meeting.worker}:\n{screen.quote_block(exchange.answer)}")


def _describe_status(details: MeetingDetails) -> str:
    meeting = details.meeting
    if meeting.status == "open":
        return "open (an answer is due)" if details.answering else "open"
    if meeting.status == "requested" and meeting.deferred_to:
        return f"requested (deferred to {meeting.deferred_to})"
    return f"{meeting.status} ({meeting.reason})" if meeting.status == "declined" and meeting.reason else meeting.status


def print_change(meeting: Meeting, screen: Screen) -> None:
    """Print the new state of a meeting and the command that continues it."""
    match meeting.status:
        case "open":
            screen.result(f"{meeting.id} is open")
            screen.note(f"Continue: guild meet {meeting.id}")
        case "closed":
            screen.result(f"{meeting.id} is closed. Notes: git show guildhall/records:{meeting.notes}")
            screen.note(f"Details: guild show {meeting.id}")
        case "requested":
            screen.result(f"{meeting.id} is deferred to {meeting.deferred_to}")
        case _:
            screen.result(f"{meeting.id} is declined")
