"""Conversation: numbers the user's messages of a run that waits for the next message after each of its turns.

The first message is the input of the run. Later messages have the keys u1, u2 and so on.

Does not wait for messages (`runs.execution.segment`) and does not own conversations (`projects.meetings`).

Invariant: a message is in the journal before the run receives it, so a resumed run receives an identical message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.errors import Conflict, RuntimeFailed
from guildhall.runs.record.entries import Entry, ModelAnswered, Payload, Said

if TYPE_CHECKING:
    from guildhall.runs.record.journal import Journal


def key_of(number: int) -> str:
    """The key of what is said for the how-manieth time."""
    return f"u{number}"


def number_of(key: str, journal: Journal) -> int:
    """The how-manieth words a key names: those on record, or the next ones."""
    heard = len(journal.all(Said))
    number = int(key[1:]) if key[:1] == "u" and key[1:].isascii() and key[1:].isdigit() else 0
    if not 1 <= number <= heard + 1 or key != key_of(number):
        raise RuntimeFailed(f"the run asked for words {key!r} of the person; the next ones are {key_of(heard + 1)}")
    return number


def since_said(journal: Journal) -> list[Entry[Payload]]:
    """The entries since the last time that something was said; all where nothing was."""
    place = max((place for place, entry in enumerate(journal.entries) if isinstance(entry.data, Said)), default=-1)
    return journal.entries[place + 1 :]


def unusable(journal: Journal) -> str | None:
    """What is wrong with the answer that a turn ended with, if anything: it was given up then."""
    if not (answers := journal.all(ModelAnswered)):
        return None
    response = answers[-1].data.response
    if response.get("finish_reason") == "length":
        return "the answer was cut off at its maximum length"
    texts = [part["content"] for part in response["parts"] if part["part_kind"] == "text"]
    return None if "".join(texts).strip() else "the answer was empty"


def refuse_conversation(journal: Journal, what: str, hint: str) -> None:
    """Refuses what cannot be done with a conversation."""
    if journal.assembly.converses:
        raise Conflict(f"the run {journal.run} is a conversation, and {what}", hint=hint)
