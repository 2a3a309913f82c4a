"""Meeting output: prints meetings, their last exchange and changes of their state.

Does not conduct a meeting (see `cli.conversation`).

Invariant: foreign words are printed behind bars, so that they cannot pass for output of guild.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.cli.format.jobs import print_decisions
from guildhall.cli.screen import Screen, money

if TYPE_CHECKING:
    from guildhall.projects.meetings.model import Exchange, Meeting, MeetingDetails

_MAX_EXCHANGES = 3  # that are printed; --json has all


def print_meeting(shown: MeetingDetails, screen: Screen) -> None:
    """Print everything about a meeting except older exchanges."""
    meeting = shown.meeting
    rows = [
        ["meeting", meeting.id],
        ["worker", meeting.worker],
        ["project", meeting.project],
        ["topic", screen.exactly(meeting.topic)],
        ["status", _standing(shown)],
        ["by", meeting.by + (f" ({meeting.made_by})" if meeting.made_by else "")],
        ["opened", meeting.created_at],
        ["sittings", str(meeting.sittings) if meeting.sittings > 1 else ""],
        ["run", meeting.run or ""],
        ["branch", meeting.branch or ""],
        ["checkout", screen.exactly(shown.worktree or "")],
        ["cost", money(shown.cost_usd) if meeting.run else ""],
        *(["linked", screen.exactly(path)] for path in meeting.linked),
        ["notes", meeting.notes or ""],
    ]
    screen.table([row for row in rows if row[1]])
    if meeting.summary:
        screen.heading("\nsummary")
        screen.result(meeting.summary)
    print_decisions(shown.decisions, screen)
    if shown.followups:
        screen.heading("\nfollow-ups")
        for one in shown.followups:
            whom = f" ({one.worker})" if one.worker else ""
            screen.result(f"{one.title}{whom}\n{screen.barred(one.prompt, wrapped=screen.out.isatty())}")
    if last := shown.exchanges[-_MAX_EXCHANGES:]:
        screen.heading(f"\nlast said ({len(last)} of {len(shown.exchanges)})")
        for exchange in last:
            print_exchange(exchange, meeting, screen)
    for warning in shown.warnings:
        screen.note(warning, "yellow")
    _print_next_steps(meeting, screen)


def print_exchange(exchange: Exchange, meeting: Meeting, screen: Screen) -> None:
    """Print the words of the user and the answer behind bars, so that they cannot pass for output of guild."""
    wrapped = screen.out.isatty()
    if exchange.words:
        screen.result(f"you:\n{screen.barred(exchange.words, wrapped=wrapped)}")
    if exchange.answer:
        screen.result(f"{meeting.worker}:\n{screen.barred(exchange.answer, wrapped=wrapped)}")


def _standing(shown: MeetingDetails) -> str:
    meeting = shown.meeting
    if meeting.status == "open":
        return "open (an answer is due)" if shown.answering else "open"
    if meeting.status == "requested" and meeting.deferred_to:
        return f"requested (put off until {meeting.deferred_to})"
    return f"{meeting.status} ({meeting.reason})" if meeting.status == "declined" and meeting.reason else meeting.status


def _print_next_steps(meeting: Meeting, screen: Screen) -> None:
    if meeting.status == "open":
        screen.note(f"Go there: guild meet {meeting.id}    Close it: guild meeting close {meeting.id}")
    elif meeting.status == "requested":
        verbs = f"guild meeting accept {meeting.id}, decline {meeting.id}, defer {meeting.id} DATE"
        screen.note(f"Say what you think: {verbs}")


def print_change(meeting: Meeting, screen: Screen) -> None:
    """Print the new state of a meeting and what to do next."""
    match meeting.status:
        case "open":
            screen.result(f"{meeting.id} is open")
            screen.note(f"Go there: guild meet {meeting.id}")
        case "closed":
            screen.result(f"{meeting.id} is closed; its notes are {meeting.notes} on claude/main of {meeting.project}")
            screen.note(f"What came out: guild meeting show {meeting.id}")
        case "requested":
            screen.result(f"{meeting.id} is put off until {meeting.deferred_to}")
        case _:
            screen.result(f"{meeting.id} is declined")
