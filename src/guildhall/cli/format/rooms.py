"""What happens in a room, in lines that people read. Messages are whole: they are what it is all about."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from guildhall.cli.screen import one_line, plain

if TYPE_CHECKING:
    from collections.abc import Mapping

    from guildhall.room.model import Message

# The tools of a room whose calls are told as what they did there; only a call that failed is told as a call.
TOLD = frozenset(
    {
        *("channel_send", "document_write", "document_append", "document_create", "document_suggest"),
        *("proposal_create", "proposal_vote", "proposal_cancel", "status_set", "no_action"),
    }
)
ROOM = "room"  # who speaks where nobody does


def line_of(type: str, data: Mapping[str, Any]) -> str | None:
    """An event of a room, or of the workflow itself; None where there is nothing to say."""
    actor = one_line(str(data.get("actor")), 80)
    match type:
        case "message" | "held":
            speaker = actor if data.get("kind") in ("message", "suggestion") else ROOM
            kept = " (held back: this seems to go round in circles)" if type == "held" else ""
            return said(speaker, data.get("reached") or (), str(data.get("content"))) + kept
        case "vote":
            why = f" ({data['reason']})" if data.get("reason") else ""
            return one_line(f"{actor} votes on {data.get('id')}: {data.get('choice')}{why}", 500)
        case "document":
            done = "made" if data.get("new") else "changed"
            return one_line(f"{actor} {done} the document {data.get('path')} ({data.get('size')} bytes)", 500)
        case "status":
            told = "; ".join(str(data[name]) for name in ("task", "state") if data.get(name))
            return one_line(f"{actor} is at: {told}", 500) if told else None
        case "no_action":
            return one_line(f"{actor} has nothing to do: {data.get('reason') or 'no reason given'}", 500)
        case "trouble":
            return one_line(f"{ROOM}: {data.get('message')}", 500)
        case "workflow":
            return _phase(data)
        case _:
            return None


def said(speaker: str, reached: Any, content: str) -> str:
    """Who says what to whom; lines after the first are set in, so that none of them passes for another's."""
    to = ", ".join(map(str, reached))
    first = f"{speaker} to {to}" if to else speaker
    return f"{one_line(first, 200)}: {plain(content).strip()}".replace("\n", "\n    ")


def message_line(message: Message) -> str:
    """A message of the channel, as `guild log` shows it."""
    speaker = message.sender if message.kind in ("message", "suggestion") else ROOM
    return f"      {message.at[11:19]}Z  {said(speaker, message.mentions, message.content)}"


def _phase(data: Mapping[str, Any]) -> str | None:
    words = {
        "setup": "setup" if data.get("steps") else None,
        "election": "the agents elect who writes the documents",
        "quiet": "quiet",
    }
    return words.get(str(data.get("phase")))
