"""Texts of a room: render messages, inboxes, proposals and the team as text for agents.

Lines of a message that imitate the header of another message are escaped.
Does not render files for people (`file_export.py`) or the first message of a run (`workflow/agent_turn.py`).

Invariant: a message cannot pass for a message of another sender.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from guildhall.room.model import ALL, PERSON, Mail, Message, Outcome, Posted, Proposal, RoomRecord, Seat, Vote

if TYPE_CHECKING:
    from collections.abc import Sequence


# The first lines of messages, here and in what a run is told first. Nobody writes one into a message of their own.
_HEAD = re.compile(r"^(?=--- #\d|(?:(?:high|low) priority )?\[\d+\] .*\):\s*$)", re.MULTILINE)


def as_said(text: str) -> str:
    """What somebody has said, in which no line passes for the beginning of what somebody else has said."""
    return _HEAD.sub(r"\\", text)


def message_text(message: Message) -> str:
    """A message with its number, sender and time; what the room itself says is marked by its kind."""
    kind = "" if message.kind == "message" else f", {message.kind}"
    to = f" to {', '.join(message.mentions)}" if message.mentions else ""
    return f"[{message.id}] {message.sender}{to} ({message.at}{kind}):\n{as_said(message.content)}"


def mail_text(batch: Sequence[Mail], left: int = 0) -> str:
    """An inbox: what is urgent first."""
    if not batch:
        return "Your inbox is empty."
    ordered = sorted(batch, key=lambda mail: -mail.priority)
    marks = ("" if mail.urgency == "normal" else f"{mail.urgency} priority " for mail in ordered)
    texts = [f"{mark}{message_text(mail.message)}" for mark, mail in zip(marks, ordered, strict=True)]
    if left > 0:
        texts.append(f"... and {left} newer ones, which come when these are handled.")
    return "\n\n".join(texts)


def posted_text(posted: Posted) -> str:
    """What the sender of a message is told of it."""
    lines = [f"Sent as message {posted.id}."]
    if posted.resource:
        lines.append(f"It is long and was kept as resource {posted.resource}; the channel shows its beginning.")
    if posted.held:
        lines.append(f"It is held back: this seems to go round in circles. @{PERSON} is asked; end your turn.")
    elif posted.reached:
        lines.append(f"It reaches {', '.join(posted.reached)}.")
    else:
        lines.append(f"Nobody is mentioned, so nobody is woken. Use @name or @{ALL} to reach somebody.")
    if posted.missed:
        lines.append(f"Warning: nobody here is called {', '.join(f'@{name}' for name in posted.missed)}.")
    if posted.overlooked:
        names = ", ".join(f"@{name}" for name in posted.overlooked)
        lines.append(f"Warning: {names} in code or a quotation is no mention.")
    return " ".join(lines)


def team_text(seats: Sequence[Seat], room: RoomRecord, me: str) -> str:
    """The team, one a line."""
    lines: list[str] = []
    for seat in seats:
        roles = [role for role, agent in room.roles.items() if agent == seat.agent]
        if room.owner == seat.agent and "document owner" not in roles:
            roles.append("document owner")
        notes = [
            "you" if seat.agent == me else "",
            ", ".join(roles),
            f"task: {seat.task}" if seat.task else "",
            f"state: {seat.state}" if seat.state else "",
        ]
        told = "; ".join(note for note in notes if note)
        lines.append(f"@{seat.agent} ({told})" if told else f"@{seat.agent}")
    return "\n".join([*lines, f"@{PERSON} is whoever watches; @{ALL} is everybody."])


def outcome_text(proposal: Proposal, outcome: Outcome | None) -> str:
    """What a voter is told."""
    if outcome is None:
        return f"Your vote on {proposal.id} counts. It is still open."
    if outcome.result is None:
        return f"Your vote counts. {proposal.id} has ended without a result: {outcome.reason}."
    return f"Your vote counts. {proposal.id} has ended: {outcome.result} ({outcome.reason})."


def proposal_text(proposal: Proposal, votes: Sequence[Vote]) -> str:
    """A proposal with its votes."""
    lines = [
        f"{proposal.id} {proposal.title!r} by {proposal.creator}: {proposal.status}"
        + (f", {proposal.result}" if proposal.result else "")
        + (f" ({proposal.reason})" if proposal.reason else ""),
        f"{proposal.form}, {proposal.quorum} of {len(proposal.eligible)} votes needed",
    ]
    for option in proposal.options:
        voters = [vote.agent for vote in votes if vote.choice == option]
        lines.append(f"- {option}: {len(voters)}" + (f" ({', '.join(voters)})" if voters else ""))
    if proposal.status == "open":
        missing = [name for name in proposal.eligible if name not in {vote.agent for vote in votes}]
        if missing:
            lines.append(f"Not voted yet: {', '.join(missing)}")
        if proposal.expires_at:
            lines.append(f"Ends at {proposal.expires_at}")
    if proposal.guards:
        lines.append(f"Guards: {', '.join(proposal.guards)}")
    return "\n".join(lines)


def announcement(proposal: Proposal) -> str:
    """Return the message that announces a proposal."""
    lines = [
        f"[PROPOSAL] {proposal.id} {proposal.title!r} ({proposal.form})",
        f"Options: {', '.join(proposal.options)}",
    ]
    if proposal.guards:
        lines.append(f"Until it passes, closed: {', '.join(proposal.guards)}")
    if proposal.expires_at:
        lines.append(f"It ends at {proposal.expires_at}.")
    return "\n".join([*lines, f'Vote: proposal_vote(proposal="{proposal.id}", choice=...)'])


def decision_text(proposal: Proposal, votes: Sequence[Vote]) -> str:
    """Return the entry of a decided proposal in decisions.md."""
    lines = [
        f"## {proposal.id} {proposal.title}",
        "",
        f"- Result: **{proposal.result}** ({proposal.status}, {proposal.reason})",
        f"- {proposal.form.capitalize()}; proposed by {proposal.creator}",
        f"- {proposal.ended_at}",
    ]
    for option in proposal.options:
        named = [
            f"{vote.agent} ({vote.reason})" if vote.reason else vote.agent for vote in votes if vote.choice == option
        ]
        lines.append(f"- {option}: {', '.join(named) if named else 'nobody'}")
    return "\n".join([*lines, "", ""])
