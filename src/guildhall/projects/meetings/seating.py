"""A worker in a meeting: what it may use there, and what it is told first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.projects.meetings.transcript import barred
from guildhall.projects.seating import in_checkout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from guildhall.projects.meetings.model import Exchange, Meeting
    from guildhall.workers.model import Worker

HOW_TO = """\
You are in a meeting with a person, who reads what you say as you write it. They may leave and come back days later; \
only they end the meeting. Answer what they say, and wait for what they say next.
You see a checkout of the project that is this meeting's own: what you change there reaches the project when the \
meeting is closed.
- link_artifact: artifacts that the meeting is about, or that come out of it.
- record_decision: what was decided, by the person or by you, with the reason. It goes into the notes.
- propose_followup: work that should be commissioned afterwards. You begin nothing: the person does.
- summarize_progress: where the meeting stands, whenever that changes, in a few sentences."""
_LOST = """\
You are in a meeting that is about: {topic}
What was said in it so far is lost. Say so, in a sentence, and ask the person where you were."""
_LAST_WHOLE = 4  # exchanges that a renewed session is given as they were
_LONGEST_WHOLE = 40_000  # characters of them


def seated(worker: Worker) -> Worker:
    """The worker as it is in a meeting: with the files of its checkout, and told how a meeting goes."""
    return in_checkout(worker, HOW_TO)


def first_message(meeting: Meeting, words: Sequence[str]) -> str:
    """What the worker hears first: the person's own words, or why it is here."""
    if words and meeting.by in ("person", "artifact"):
        return "\n\n".join([*words, *_linked(meeting)])
    if meeting.by in ("person", "artifact"):  # what was said is lost with the record of an earlier hall
        return "\n\n".join([_LOST.format(topic=meeting.topic), *_linked(meeting)])
    who = "The guild has" if meeting.by == "hall" else "You have"
    parts = [f"{who} asked for this meeting, and the person has come. It is about: {meeting.topic}", *_linked(meeting)]
    begin = "Begin: say in a few sentences what there is to talk about, and what you need."
    return "\n\n".join([*parts, "The person says:", *words] if words else [*parts, begin])


def _linked(meeting: Meeting) -> list[str]:
    return ["Linked to this meeting:\n" + "\n".join(f"- {path}" for path in meeting.linked)] if meeting.linked else []


def renewed_message(meeting: Meeting, summary: str | None, exchanges: Sequence[Exchange], words: Sequence[str]) -> str:
    """What a new session of the same meeting is told: what was said so far, then the person's new words."""
    answered = [one for one in exchanges if one.answer]
    parts = [f"This meeting has been going on for a while; it is about: {meeting.topic}", *_linked(meeting)]
    if summary:
        parts.append(f"What was said so far, in summary:\n\n{barred(summary)}")
    if last := _whole(answered):
        parts.append("The last that was said, word for word:\n\n" + "\n\n".join(map(_exchange, last)))
    if words:
        parts.append("Now the person says:\n\n" + "\n\n".join(words))
    else:
        parts.append("The person has come back. Say in a sentence or two where you were.")
    return "\n\n".join(parts)


def _whole(exchanges: Sequence[Exchange]) -> list[Exchange]:
    """The last exchanges that fit."""
    found: list[Exchange] = []
    room = _LONGEST_WHOLE
    for one in reversed(exchanges[-_LAST_WHOLE:]):
        room -= len(one.words) + len(one.answer)
        if room < 0:
            break
        found.insert(0, one)
    return found


def _exchange(one: Exchange) -> str:
    said = f"The person:\n{barred(one.words)}\n\n" if one.words else ""
    return f"{said}You:\n{barred(one.answer)}"
