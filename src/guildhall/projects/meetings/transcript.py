"""The transcript of a meeting: builds exchanges from the journals of its runs, renders and summarises them.

A worker with the meeting's model writes the summary, from at most 120,000 characters of the transcript.
Does not write the transcript file of an open meeting (`sessions.py`) or the notes (`artifact.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from guildhall.core.errors import GuildError
from guildhall.projects.meetings.model import Exchange, UserMessage
from guildhall.runs.model import HALL, RunRequest
from guildhall.runs.record.entries import Entry, ModelAnswered, Payload, Said

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from guildhall.core.frame import Frame
    from guildhall.projects.meetings.context import MeetingContext


def merge_exchanges(
    messages: Sequence[UserMessage], sessions: Iterable[tuple[int, Sequence[Entry[Payload]]]]
) -> list[Exchange]:
    """Return the exchanges in order.

    A session is the number of the last message that its first message contains, and its journal. A message that one
    session left unanswered is answered in the next.
    """
    found: dict[int, Exchange] = {}
    by_number = {message.number: message for message in messages}
    for after, entries in sessions:
        number = after
        if number not in found or not found[number].answer:
            found[number] = _unanswered(number, by_number)
        for entry in entries:
            if isinstance(entry.data, Said):
                number = after + int((entry.key or "u0")[1:])
                found[number] = _unanswered(number, by_number)
            elif isinstance(entry.data, ModelAnswered):
                found[number] = _with_answer(found[number], entry.data, entry.at)
    for number in by_number:
        found.setdefault(number, _unanswered(number, by_number))
    return [found[number] for number in sorted(found)]


def _unanswered(number: int, messages: Mapping[int, UserMessage]) -> Exchange:
    message = messages.get(number)
    return Exchange(number=number, words=message.text if message else "", answer="", at=message.at if message else "")


def _with_answer(exchange: Exchange, answered: ModelAnswered, at: str) -> Exchange:
    parts = cast("list[dict[str, Any]]", answered.response["parts"])
    text = "".join(part["content"] for part in parts if part["part_kind"] == "text").strip()
    calls = tuple(part["tool_name"] for part in parts if part["part_kind"] == "tool-call")
    answer = f"{exchange.answer}\n\n{text}" if exchange.answer and text else exchange.answer or text
    return replace(exchange, answer=answer, calls=(*exchange.calls, *calls), at=exchange.at or at)


def render_transcript(exchanges: Iterable[Exchange], worker: str) -> str:
    """Return the transcript as people and models read it."""
    parts: list[str] = []
    for exchange in exchanges:
        if exchange.words:
            parts.append(f"## Person\n\n{exchange.words.strip()}")
        used = f"(used {', '.join(dict.fromkeys(exchange.calls))})\n\n" if exchange.calls else ""
        if exchange.answer or used:
            parts.append(f"## {worker}\n\n{used}{exchange.answer}".rstrip())
    return "\n\n".join(parts) + ("\n" if parts else "")


def quote(text: str) -> str:
    """Return a text with a bar before each line, so that a model can tell it from its instructions."""
    return "\n".join(f"| {line}" for line in text.strip().splitlines())


WORKER = "meeting-summariser"
_MAX_TRANSCRIPT = 120_000  # characters: the last ones
_LEFT_OUT = "(What was said before this is left out.)\n\n"


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A summary, or the reason why there is none."""

    text: str | None = None
    problem: str | None = None


async def summarise(context: MeetingContext, transcript: str, frame: Frame, model: str | None) -> Summary:
    """Return the summary of a transcript, by the model of the meeting."""
    if not transcript.strip():
        return Summary(problem="nothing was said")
    given = transcript if len(transcript) <= _MAX_TRANSCRIPT else _LEFT_OUT + transcript[-_MAX_TRANSCRIPT:]
    request = RunRequest(
        worker=f"shipped/{WORKER}", input=quote(given), override_model=model, max_turns=1, mode="strict"
    )
    try:
        hall_frame = replace(frame, caller=HALL, interactive=False, worktree=None)
        run = await context.runs().run_to_end(request, hall_frame, lambda run: None)
    except GuildError as error:
        return Summary(problem=error.message)
    if run.status != "completed" or not str(run.output or "").strip():
        reason = (run.error["message"] if run.error else run.reason) or "it said nothing"
        return Summary(problem=f"{run.id} {run.status}: {reason}")
    return Summary(text=str(run.output).strip())
