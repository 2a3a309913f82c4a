"""Texts for agents: renders messages, inboxes, proposals and the team.

Does not render files for people (`channel_export.py`) or the first message of a run (`workflow/agent_steps.py`).

Invariant: a message cannot imitate the header of another message.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from guildhall.room.model import ALL, PERSON, Mail, Message, Outcome, PostResult, Proposal, RoomAgent, RoomRecord, Vote

# The header lines of messages, here and in the first message of a run.
_HEADER = re.compile(r"^(?=--- #\d|(?:(?:high|low) priority )?\[\d+\] .*\):\s*$)", re.MULTILINE)


def escape_headers(text: str) -> str:
    """Return a text in which no line looks like the header of another message."""
    return _HEADER.sub(r"\\", text)


def message_text(message: Message) -> str:
    """Return a message with its number, sender, recipients and time. Messages of the room itself show their kind."""
    kind = "" if message.kind == "message" else f", {message.kind}"
    to = f" to {', '.join(message.mentions)}" if message.mentions else ""
    return f"[{message.id}] {message.sender}{to} ({message.at}{kind}):\n{escape_headers(message.content)}"


def mail_text(batch: Sequence[Mail], more_count: int = 0) -> str:
    """Return the messages of an inbox, ordered by priority. `more_count`: the number of further unread messages."""
    if not batch:
        return "Your inbox is empty."
    ordered = sorted(batch, key=lambda mail: -mail.priority)
    marks = ("" if mail.urgency == "normal" else f"{mail.urgency} priority " for mail in ordered)
    texts = [f"{mark}{message_text(mail.message)}" for mark, mail in zip(marks, ordered, strict=True)]
    if more_count > 0:
        texts.append(f"... {more_count} newer messages are delivered after you have handled these.")
    return "\n\n".join(texts)


def posted_text(posted: PostResult) -> str:
    """Return the tool result for the sender of a message."""
    lines = [f"Posted as message {posted.id}."]
    if posted.resource:
        lines.append(f"It is long: the channel shows its start and end, resource {posted.resource} has the whole text.")
    if posted.held:
        lines.append("It is held: possible loop between agents. The user was asked. End your turn now.")
    elif posted.reached:
        lines.append(f"Notified: {', '.join(posted.reached)}.")
    else:
        lines.append("No agent was notified: pass the recipient in `to`.")
    if posted.missed:
        lines.append(f"Warning: no agent named {', '.join(f'@{name}' for name in posted.missed)}.")
    if posted.overlooked:
        names = ", ".join(f"@{name}" for name in posted.overlooked)
        lines.append(f"Warning: {names} inside code or a quote does not count as a mention.")
    return " ".join(lines)


def team_text(agents: Sequence[RoomAgent], room: RoomRecord, reader: str) -> str:
    """Return the agents of the team, one per line. `reader`: the agent that reads the text."""
    lines: list[str] = []
    for agent in agents:
        roles = [role for role, holder in room.roles.items() if holder == agent.agent]
        if room.owner == agent.agent and "document owner" not in roles:
            roles.append("document owner")
        notes = [
            "you" if agent.agent == reader else "",
            ", ".join(roles),
            f"task: {agent.task}" if agent.task else "",
            f"state: {agent.state}" if agent.state else "",
        ]
        status = "; ".join(note for note in notes if note)
        lines.append(f"@{agent.agent} ({status})" if status else f"@{agent.agent}")
    return "\n".join([*lines, f"@{PERSON} is the user; @{ALL} addresses every agent."])


def outcome_text(proposal: Proposal, outcome: Outcome | None) -> str:
    """Return the tool result for a voter."""
    if outcome is None:
        return f"Vote recorded. {proposal.id} is still open."
    if outcome.result is None:
        return f"Vote recorded. {proposal.id} has ended without a result: {outcome.reason}."
    return f"Vote recorded. {proposal.id} has ended: {outcome.result} ({outcome.reason})."


def proposal_text(proposal: Proposal, votes: Sequence[Vote]) -> str:
    """Return a proposal with its votes."""
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


def announcement_text(proposal: Proposal) -> str:
    """Return the message that announces a proposal."""
    lines = [
        f"[PROPOSAL] {proposal.id} {proposal.title!r} ({proposal.form})",
        f"Options: {', '.join(proposal.options)}",
    ]
    if proposal.guards:
        lines.append(f"Closed until it passes: {', '.join(proposal.guards)}")
    if proposal.expires_at:
        lines.append(f"Open until {proposal.expires_at}.")
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
        voters = [
            f"{vote.agent} ({vote.reason})" if vote.reason else vote.agent for vote in votes if vote.choice == option
        ]
        lines.append(f"- {option}: {', '.join(voters) or 'no votes'}")
    return "\n".join([*lines, "", ""])
