"""The meeting context: gives the meeting operations their collaborators, and answers queries about a meeting.

Also builds exchanges from the journals of its runs, renders and summarises them.
Does not decide anything: the operations are in `service.py`, `sessions.py` and `meeting_requests.py`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from guildhall.core.errors import GuildError
from guildhall.projects.meetings import records
from guildhall.projects.meetings.model import Exchange, FollowUp, Meeting, MeetingDetails, Session, UserMessage
from guildhall.projects.shared_records import list_decisions
from guildhall.projects.workspace import ProjectContext
from guildhall.runs.model import HALL, RunRequest
from guildhall.runs.record.entries import Entry, Listening, ModelAnswered, Payload, Said

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from guildhall.core.events import EventBus
    from guildhall.core.paths import Home
    from guildhall.core.request_frame import Frame
    from guildhall.projects.meetings.states import MeetingStatus
    from guildhall.projects.model import Scope


@dataclass(frozen=True, kw_only=True)
class MeetingContext(ProjectContext):
    """The collaborators of the meeting operations. It decides nothing."""

    home: Home
    bus: EventBus
    check_trust: Callable[[str, Frame], None]  # raises if the code of a run's worker is no longer trusted

    # the record

    def get(self, id: str) -> Meeting:
        return self.store.read(lambda connection: records.get(connection, id))

    def all(self, project: str | None = None, status: MeetingStatus | None = None) -> list[Meeting]:
        """Return meetings, newest first."""
        return self.store.read(lambda connection: records.list_all(connection, project, status))

    def messages(self, id: str) -> list[UserMessage]:
        return self.store.read(lambda connection: records.messages(connection, id))

    def last_message(self, id: str) -> int:
        """Return the number of the last message of the user, or 0."""
        found = self.messages(id)
        return found[-1].number if found else 0

    def sessions(self, id: str) -> list[Session]:
        return self.store.read(lambda connection: records.sessions(connection, id))

    # the project

    async def check_out(self, meeting: Meeting, scope: Scope) -> Path:
        """Create the checkout of a meeting if it does not exist, and return its path."""

        def check_out() -> Path:
            workplace = self.workspace(meeting)
            if workplace.tip() is None:
                workplace.branches.try_update()
            return workplace.check_out(scope)

        return await asyncio.to_thread(check_out)

    def project_frame(self, meeting: Meeting, frame: Frame, worktree: Path | None = None) -> Frame:
        """Return the frame of a run of a meeting: its project, with the caller's variables and keys."""
        path = self.project(meeting).path
        return replace(frame, cwd=path, root=path, worktree=worktree)

    def hall_frame(self, meeting: Meeting) -> Frame:
        """Return the frame of the hall's own operations in the project of a meeting."""
        return self.frame_at(self.project(meeting).path)

    def transcript_path(self, meeting: Meeting) -> Path:
        """Return the path of the transcript, which exists while the meeting is open."""
        return self.home.path / "projects" / meeting.project / "meetings" / f"{meeting.id}.md"

    # queries

    def details(self, id: str) -> MeetingDetails:
        """Return everything about a meeting, except warnings about its artifact."""
        meeting, timeline, sessions = self.get(id), self.timeline(id), self.sessions(id)
        costs = [self.history.get(session.run).cost_usd for session in sessions]
        known = [cost for cost in costs if cost is not None]
        decisions = [found for session in sessions for found in list_decisions(self.history.entries(session.run))]
        proposals = [entry.data["followup"] for entry in timeline if entry.kind == "propose_followup"]
        return MeetingDetails(
            meeting=meeting,
            exchanges=self.exchanges(id),
            followups=[FollowUp(**proposal) for proposal in proposals],
            decisions=decisions,
            timeline=timeline,
            answering=meeting.status == "open" and self.unanswered_messages(id) is not None,
            cost_usd=sum(known) if known else None,
            worktree=self.checkout_path(meeting),
        )

    def exchanges(self, id: str) -> list[Exchange]:
        journals = [(session.after, self.history.entries(session.run)) for session in self.sessions(id)]
        return merge_exchanges(self.messages(id), journals)

    def unanswered_messages(self, id: str) -> list[UserMessage] | None:
        """Return the messages that the worker has not answered, or None if no answer is due.

        The list is empty if the worker has to speak first.
        """
        answered, messages = self._last_answered(id), self.messages(id)
        if answered >= (messages[-1].number if messages else 0):
            return None
        return [message for message in messages if message.number > answered]

    def _last_answered(self, id: str) -> int:
        """Return the number of the last answered message: 0 if only the worker has spoken, -1 without any message."""
        for session in reversed(self.sessions(id)):
            position = self.run_position(session.run)
            if self._is_cut_off(session):
                return session.after + position
            if position:
                return session.after + position - 1
        return -1

    def _is_cut_off(self, session: Session) -> bool:
        """Return True if the user interrupted the last answer of a session and has said nothing since."""
        entries = self.history.entries(session.run)
        spoken = [entry.data for entry in entries if isinstance(entry.data, Listening | Said | ModelAnswered)]
        return bool(spoken) and isinstance(spoken[-1], ModelAnswered) and spoken[-1].cut_off

    def run_position(self, run: str) -> int:
        """Return the number, within its run, of the message that it waits for or answers; 0 at its first message."""
        heard = [entry for entry in self.history.entries(run) if isinstance(entry.data, Listening | Said)]
        return int((heard[-1].key or "u0")[1:]) if heard else 0

    def checkout_path(self, meeting: Meeting) -> str | None:
        """Return the path of the checkout of an open meeting, or None if it has none."""
        if meeting.run is None or meeting.status != "open":
            return None
        path = self.history.get(meeting.run).frame.worktree
        return str(path) if path is not None else None

    def checkout_scope(self, meeting: Meeting) -> Scope:
        """Return how much of the project the checkout contains, by the worker file of the last session."""
        if meeting.run is None:
            return "sparse"
        definition = self.history.journal(meeting.run).assembly.worker["definition"]
        return "full" if definition.get("checkout") == "full" else "sparse"

    async def summarise(self, transcript: str, frame: Frame, model: str | None) -> Summary:
        """Return the summary of a transcript, by the model of the meeting."""
        if not transcript.strip():
            return Summary(problem="the conversation is empty")
        given = transcript if len(transcript) <= _MAX_TRANSCRIPT else _LEFT_OUT + transcript[-_MAX_TRANSCRIPT:]
        request = RunRequest(
            worker=f"shipped/{SUMMARISER}", input=quote(given), override_model=model, max_turns=1, mode="strict"
        )
        try:
            hall_frame = replace(frame, caller=HALL, interactive=False, worktree=None)
            run = await self.runs().run_to_end(request, hall_frame, lambda run: None)
        except GuildError as error:
            return Summary(problem=error.message)
        if run.status != "completed" or not str(run.output or "").strip():
            reason = (run.error["message"] if run.error else run.reason) or "the answer is empty"
            return Summary(problem=f"{run.id} {run.status}: {reason}")
        return Summary(text=str(run.output).strip())


# exchanges and transcript


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
            found[number] = _empty_exchange(number, by_number)
        for entry in entries:
            if isinstance(entry.data, Said):
                number = after + int((entry.key or "u0")[1:])
                found[number] = _empty_exchange(number, by_number)
            elif isinstance(entry.data, ModelAnswered):
                found[number] = _with_answer(found[number], entry.data, entry.at)
    for number in by_number:
        found.setdefault(number, _empty_exchange(number, by_number))
    return [found[number] for number in sorted(found)]


def _empty_exchange(number: int, messages: Mapping[int, UserMessage]) -> Exchange:
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
            parts.append(f"## User\n\n{exchange.words.strip()}")
        used = f"(used {', '.join(dict.fromkeys(exchange.calls))})\n\n" if exchange.calls else ""
        if exchange.answer or used:
            parts.append(f"## {worker}\n\n{used}{exchange.answer}".rstrip())
    return "\n\n".join(parts) + ("\n" if parts else "")


def quote(text: str) -> str:
    """Return a text with a bar before each line, so that a model can tell it from its instructions."""
    return "\n".join(f"| {line}" for line in text.strip().splitlines())


SUMMARISER = "meeting-summariser"
_MAX_TRANSCRIPT = 120_000  # characters: the last ones
_LEFT_OUT = "(Earlier messages are omitted.)\n\n"


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A summary, or the reason why it is missing."""

    text: str | None = None
    problem: str | None = None
