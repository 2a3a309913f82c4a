"""What was said in a meeting, over all of its sittings, as the record has it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from guildhall.projects.meetings.model import Exchange, FollowUp
from guildhall.runs.record.entries import ModelAnswered, Said

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from guildhall.projects.meetings.model import Words
    from guildhall.projects.model import Moment
    from guildhall.runs.record.entries import Entry, Payload

FOLLOWUP = "followup"  # what a line of the timeline has under this name is one


def exchanges(said: Sequence[Words], sittings: Iterable[tuple[int, Sequence[Entry[Payload]]]]) -> list[Exchange]:
    """The exchanges in their order. A sitting: the number of the last words that its first message has, its journal.

    What one sitting has left without an answer is answered in the next.
    """
    found: dict[int, Exchange] = {}
    texts = {one.number: one for one in said}
    for after, entries in sittings:
        number = after
        if number not in found or not found[number].answer:
            found[number] = _begun(number, texts)
        for entry in entries:
            if isinstance(entry.data, Said):
                number = after + int((entry.key or "u0")[1:])
                found[number] = _begun(number, texts)
            elif isinstance(entry.data, ModelAnswered):
                found[number] = _continued(found[number], entry.data, entry.at)
    for number in texts:
        found.setdefault(number, _begun(number, texts))
    return [found[number] for number in sorted(found)]


def _begun(number: int, texts: Mapping[int, Words]) -> Exchange:
    words = texts.get(number)
    return Exchange(number=number, words=words.words if words else "", answer="", at=words.at if words else "")


def _continued(exchange: Exchange, answered: ModelAnswered, at: str) -> Exchange:
    parts = cast("list[dict[str, Any]]", answered.response["parts"])
    text = "".join(part["content"] for part in parts if part["part_kind"] == "text").strip()
    calls = tuple(part["tool_name"] for part in parts if part["part_kind"] == "tool-call")
    answer = f"{exchange.answer}\n\n{text}" if exchange.answer and text else exchange.answer or text
    return replace(exchange, answer=answer, calls=(*exchange.calls, *calls), at=exchange.at or at)


def as_text(exchanges: Iterable[Exchange], worker: str) -> str:
    """The transcript as people and models read it."""
    told: list[str] = []
    for one in exchanges:
        if one.words:
            told.append(f"## Person\n\n{one.words.strip()}")
        used = f"(used {', '.join(dict.fromkeys(one.calls))})\n\n" if one.calls else ""
        if one.answer or used:
            told.append(f"## {worker}\n\n{used}{one.answer}".rstrip())
    return "\n\n".join(told) + ("\n" if told else "")


def barred(text: str) -> str:
    """Material, told apart from what is meant for the worker itself."""
    return "\n".join(f"| {line}" for line in text.strip().splitlines())


def followups(timeline: Iterable[Moment]) -> list[FollowUp]:
    return [FollowUp(**moment.data[FOLLOWUP]) for moment in timeline if FOLLOWUP in moment.data]
