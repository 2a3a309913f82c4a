"""The loop guard: holds the messages of agents that only talk to each other, and writes the question for the user.

The room detects `max_hops` and `max_repeats` when a message is posted. This module counts rounds of turns without
progress (`max_rounds_without_progress`) at the end of each turn.
Does not ask the user (`team.py`) or change deliveries (`room/inbox.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from guildhall.room import ballots
from guildhall.room import records as room_records
from guildhall.room.model import Actor, Mail, Message
from guildhall.room.service import perform_in
from guildhall.runs.model import Question
from guildhall.runs.record import records as run_records
from guildhall.runs.record.entries import ToolStarted
from guildhall.runs.record.journal import entries_with
from guildhall.workflow import records

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from guildhall.room.operation import Turn
    from guildhall.workflow.definition import TeamLimits
    from guildhall.workflow.instance import Instance

_MAX_MESSAGES = 1_000
_MAX_SHOWN = 10  # pairs of agents, and held messages
_MAX_LINE_CHARS = 200
TALK_TOOLS = frozenset(
    {
        *("channel_send", "channel_read", "inbox_read", "inbox_ack"),
        *("status_set", "team_list", "no_action", "more_tools"),
        *("document_read", "document_list", "document_suggest", "resource_read"),
        *("proposal_create", "proposal_vote", "proposal_status", "proposal_cancel"),
    }
)


def count_turn(
    connection: Connection, instance: str, room: str, agent: str, run: str, max_rounds: int, at: str
) -> None:
    """Count a finished turn. Hold the messages of agents after too many rounds without progress.

    A round is one turn per talking agent, on average. A message from outside, or progress, resets the count.
    """
    is_from_outside = room_records.shown_inbox(connection, room, run).hops == 0
    if is_from_outside or _has_progress(connection, room, run):
        records.reset_talk_turns(connection, instance)
        perform_in(connection, room, "stop_holding", Actor.system(), at)
        return
    turn_counts = records.talk_turns(connection, instance)
    turn_counts[agent] = turn_counts.get(agent, 0) + 1
    records.add_agent_note(connection, instance, agent, talked=turn_counts[agent])
    if _is_too_long(turn_counts, max_rounds):
        busy = [state.name for state in records.list_agents(connection, instance) if state.run is not None]
        perform_in(connection, room, "hold_messages", Actor.system(), at, exempt=sorted(busy))


def _has_progress(connection: Connection, room: str, run: str) -> bool:
    """Return True if a run did more than talk: it used another tool, or a proposal was decided meanwhile."""
    started = run_records.find_run(connection, run)
    if started is not None and ballots.has_decision_since(connection, room, started.created_at):
        return True
    calls = entries_with(run_records.list_entries(connection, run), ToolStarted)
    return any(call.data.tool not in TALK_TOOLS for call in calls)


def loop_question(connection: Connection, instance: Instance, limits: TeamLimits) -> Question:
    """Return the question for the user, with the number of messages by sender and recipient, and the held messages."""
    room = instance.room
    held = room_records.mail_by_status(connection, room, "held")
    talk = (
        message
        for message in room_records.talk_since_input(connection, room, _MAX_MESSAGES)
        if message.kind in ("message", "answer")
    )
    pairs = Counter((message.sender, recipient) for message in talk for recipient in message.mentions)
    talkers = sorted({sender for sender, _ in pairs} or {mail.message.sender for _, mail in held})
    counts = [f"- {sender} to {recipient}: {count}" for (sender, recipient), count in pairs.most_common(_MAX_SHOWN)]
    held_lines = [_held_line(agent, mail.message) for agent, mail in held[:_MAX_SHOWN]]
    more = [f"- ... {len(held) - _MAX_SHOWN} more"] if len(held) > _MAX_SHOWN else []
    body = [
        f"{_hold_reason(connection, instance, limits, held)} Messages since the last message from outside:",
        *counts,
        "Held messages:",
        *held_lines,
        *more,
        "yes: deliver them and reset the limits. no: drop them.",
    ]
    title = f"Possible loop in {instance.target}: {' and '.join(talkers)}"
    return Question(title=title[:_MAX_LINE_CHARS], body="\n".join(body), choices=("yes", "no"))


def release_held_messages(connection: Connection, instance: Instance, at: str) -> Turn | None:
    """Deliver the held messages and count rounds from 0. Return the turn to announce."""
    records.reset_talk_turns(connection, instance.id)
    return perform_in(connection, instance.room, "release_messages", Actor.person(), at).turn


def drop_held_messages(connection: Connection, instance: Instance, at: str) -> Turn | None:
    """Drop the held messages. Return the turn to announce, or None if no message was held."""
    records.reset_talk_turns(connection, instance.id)
    mail = perform_in(connection, instance.room, "drop_held", Actor.person(), at).result.get("mail")
    if not mail:
        return None
    numbers = ", ".join(f"#{number}" for number in sorted({number for _, number in mail}))
    text = f"The user ended this exchange. Not delivered: {numbers}"
    actor = Actor.system(run=instance.id)
    return perform_in(connection, instance.room, "post_notice", actor, at, text=text, to=[], hops=0).turn


def _held_line(agent: str, message: Message) -> str:
    text = " ".join(message.content.split())
    shown = text if len(text) <= _MAX_LINE_CHARS else f"{text[:_MAX_LINE_CHARS]}..."
    return f"- #{message.id} from {message.sender} to {agent}: {shown}"


def _hold_reason(
    connection: Connection, instance: Instance, limits: TeamLimits, held: Sequence[tuple[str, Mail]]
) -> str:
    if any(mail.message.hops > limits.max_hops for _, mail in held):
        return f"A chain of replies has more than {limits.max_hops} messages (max_hops)."
    if _is_too_long(records.talk_turns(connection, instance.id), limits.max_rounds_without_progress):
        rounds = limits.max_rounds_without_progress
        return f"The agents only talked for {rounds} rounds (max_rounds_without_progress)."
    return f"An agent repeated a message more than {limits.max_repeats} times (max_repeats)."


def _is_too_long(turn_counts: Mapping[str, int], max_rounds: int) -> bool:
    """Return True after too many rounds without progress. `turn_counts`: turns without progress, by agent."""
    return len(turn_counts) > 1 and sum(turn_counts.values()) >= max_rounds * len(turn_counts)
