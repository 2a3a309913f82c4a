"""Room output: formats the events and messages of a room as lines.

Messages are formatted in full. Their further lines are indented, so that none can pass for another message. Does not
follow a run (see `cli.follow`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from guildhall.cli.screen import one_line, plain

if TYPE_CHECKING:
    from collections.abc import Mapping

    from guildhall.room.model import Message

# Tools whose calls are printed as the event that they cause. Only a failed call is printed as a call.
SHOWN_AS_EVENTS = frozenset(
    {
        *("channel_send", "document_write", "document_append", "document_create", "document_suggest"),
        *("proposal_create", "proposal_vote", "proposal_cancel", "status_set", "no_action"),
    }
)
ROOM = "room"  # the speaker of messages without a sender


def event_line(type: str, data: Mapping[str, Any]) -> str | None:
    """Return an event of a room or a workflow as one line, or None if it is not printed."""
    actor = one_line(str(data.get("actor")), 80)
    match type:
        case "message" | "held":
            speaker = actor if data.get("kind") in ("message", "suggestion") else ROOM
            kept = " (held back: this seems to go round in circles)" if type == "held" else ""
            return _message_text(speaker, data.get("reached") or (), str(data.get("content"))) + kept
        case "vote":
            why = f" ({data['reason']})" if data.get("reason") else ""
            return one_line(f"{actor} votes on {data.get('id')}: {data.get('choice')}{why}", 500)
        case "document":
            done = "made" if data.get("new") else "changed"
            return one_line(f"{actor} {done} the document {data.get('path')} ({data.get('size')} bytes)", 500)
        case "status":
            text = "; ".join(str(data[name]) for name in ("task", "state") if data.get(name))
            return one_line(f"{actor} is at: {text}", 500) if text else None
        case "no_action":
            return one_line(f"{actor} has nothing to do: {data.get('reason') or 'no reason given'}", 500)
        case "trouble":
            return one_line(f"{ROOM}: {data.get('message')}", 500)
        case "workflow":
            return _phase(data)
        case _:
            return None


def _message_text(speaker: str, recipients: Any, content: str) -> str:
    """Return a message with its sender and recipients. Further lines are indented, so that none can pass for one."""
    to = ", ".join(map(str, recipients))
    first = f"{speaker} to {to}" if to else speaker
    return f"{one_line(first, 200)}: {plain(content).strip()}".replace("\n", "\n    ")


def message_line(message: Message) -> str:
    """Return a message of the channel as a line of `guild log`."""
    speaker = message.sender if message.kind in ("message", "suggestion") else ROOM
    return f"      {message.at[11:19]}Z  {_message_text(speaker, message.mentions, message.content)}"


def _phase(data: Mapping[str, Any]) -> str | None:
    words = {
        "setup": "setup" if data.get("steps") else None,
        "election": "the agents elect who writes the documents",
        "quiet": "quiet",
    }
    return words.get(str(data.get("phase")))
