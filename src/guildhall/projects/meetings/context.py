"""The meeting context: the collaborators of the meeting operations, and queries about a meeting.

Exchanges are derived from the journals of the meeting's runs.
Does not change a meeting (`service.py`, `sessions.py`, `meeting_requests.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from guildhall.core.errors import GuildError
from guildhall.projects.activity_records import list_decisions
from guildhall.projects.meetings import records
from guildhall.projects.meetings.model import Exchange, FollowUp, Meeting, MeetingDetails, Session, UserMessage
from guildhall.projects.workspace import ProjectContext
from guildhall.runs.model import HALL, RunRequest
from guildhall.runs.record.entries import Entry, Listening, ModelAnswered, Payload, Said

if TYPE_CHECKING:
    from guildhall.core.events import EventBus
    from guildhall.core.paths import Home
    from guildhall.core.request_frame import Frame
    from guildhall.projects.meetings.states import MeetingStatus
    from guildhall.projects.model import Scope


@dataclass(frozen=True, kw_only=True)
class MeetingContext(ProjectContext):
    """The collaborators of the meeting operations."""

    home: Home
    bus: EventBus
    check_trust: Callable[[str, Frame], None]  # raises if the code of a run's worker is no longer trusted

    # records

    def get(self, id: str) -> Meeting:
        return self.store.read(lambda connection: records.get(connection, id))

    def list_meetings(self, project: str | None = None, status: MeetingStatus | None = None) -> list[Meeting]:
        """Return meetings, newest first."""
        return self.store.read(lambda connection: records.list_meetings(connection, project, status))

    def list_messages(self, id: str) -> list[UserMessage]:
        return self.store.read(lambda connection: records.list_messages(connection, id))

    def last_message_number(self, id: str) -> int:
        """Return the number of the last user message, or 0."""
        return max((message.number for message in self.list_messages(id)), default=0)

    def list_sessions(self, id: str) -> list[Session]:
        return self.store.read(lambda connection: records.list_sessions(connection, id))

    # the project

    async def check_out(self, meeting: Meeting, scope: Scope) -> Path:
        """Create the checkout of a meeting if it does not exist, and return its path."""

        def check_out() -> Path:
            workspace = self.workspace(meeting)
            if workspace.tip() is None:
                workspace.branches.try_update()
            return workspace.check_out(scope)

        return await asyncio.to_thread(check_out)

    def project_frame(self, meeting: Meeting, frame: Frame, worktree: Path | None = None) -> Frame:
        """Return the caller's frame in the project of a meeting."""
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
        meeting, timeline, sessions = self.get(id), self.timeline(id), self.list_sessions(id)
        costs = [self.history.get(session.run).cost_usd for session in sessions]
        known = [cost for cost in costs if cost is not None]
        journals = [self.history.entries(session.run) for session in sessions]
        decisions = [decision for entries in journals for decision in list_decisions(entries)]
        proposals = [entry.data["followup"] for entry in timeline if entry.kind == "propose_followup"]
        return MeetingDetails(
            meeting=meeting,
            exchanges=self.list_exchanges(id),
            followups=[FollowUp(**proposal) for proposal in proposals],
            decisions=decisions,
            timeline=timeline,
            answering=meeting.status == "open" and self.unanswered_messages(id) is not None,
            cost_usd=sum(known) if known else None,
            worktree=self.checkout_path(meeting),
        )

    def list_exchanges(self, id: str) -> list[Exchange]:
        journals = [
            (session.last_message_number, self.history.entries(session.run)) for session in self.list_sessions(id)
        ]
        return merge_exchanges(self.list_messages(id), journals)

    def unanswered_messages(self, id: str) -> list[UserMessage] | None:
        """Return the messages that the worker has not answered, or None if no answer is due.

        The list is empty if the worker has to speak first.
        """
        last_answered = self._last_answered_number(id)
        if last_answered >= self.last_message_number(id):
            return None
        return [message for message in self.list_messages(id) if message.number > last_answered]

    def _last_answered_number(self, id: str) -> int:
        """Return the number of the last answered message: 0 if only the worker has spoken, -1 if it has not spoken."""
        for session in reversed(self.list_sessions(id)):
            position = self.run_position(session.run)
            if self._is_cut_off(session):
                return session.last_message_number + position
            if position:
                return session.last_message_number + position - 1
        return -1

    def _is_cut_off(self, session: Session) -> bool:
        """Return True if the user interrupted the last answer of a session and has sent no message since."""
        entries = self.history.entries(session.run)
        spoken = [entry.data for entry in entries if isinstance(entry.data, Listening | Said | ModelAnswered)]
        return bool(spoken) and isinstance(spoken[-1], ModelAnswered) and spoken[-1].cut_off

    def run_position(self, run_id: str) -> int:
        """Return the number, within a run, of the message that it waits for or answers. The input has the number 0."""
        entries = [entry for entry in self.history.entries(run_id) if isinstance(entry.data, Listening | Said)]
        return _position(entries[-1]) if entries else 0

    def checkout_path(self, meeting: Meeting) -> str | None:
        """Return the path of the checkout of an open meeting, or None if it has no checkout."""
        if meeting.run is None or meeting.status != "open":
            return None
        path = self.history.get(meeting.run).frame.worktree
        return str(path) if path is not None else None

    def checkout_scope(self, meeting: Meeting) -> Scope:
        """Return the scope of the checkout that the last session recorded."""
        if meeting.run is None:
            return "sparse"
        definition = self.history.journal(meeting.run).assembly.worker["definition"]
        return "full" if definition.get("checkout") == "full" else "sparse"

    async def summarise(self, transcript: str, frame: Frame, model: str | None) -> Summary:
        """Ask a model for the summary of a transcript. `model` is None for the default model."""
        if not transcript.strip():
            return Summary(problem="the conversation is empty")
        if len(transcript) > _MAX_TRANSCRIPT_CHARS:
            transcript = _OMISSION_NOTE + transcript[-_MAX_TRANSCRIPT_CHARS:]
        worker, text = f"shipped/{SUMMARISER}", quote(transcript)
        request = RunRequest(worker=worker, input=text, override_model=model, max_turns=1, mode="strict")
        try:
            hall_frame = replace(frame, caller=HALL, interactive=False, worktree=None)
            run = await self.runs().run_to_end(request, hall_frame, lambda run: None)
        except GuildError as error:
            # The notes are committed, so they name the file without the folders of this machine.
            return Summary(problem=f"{Path(error.where).name}: {error.message}" if error.where else error.message)
        if run.status != "completed" or not str(run.output or "").strip():
            reason = (run.error["message"] if run.error else run.reason) or "the response is empty"
            return Summary(problem=f"{run.id} {run.status}: {reason}")
        return Summary(text=str(run.output).strip())


# exchanges and transcript


def merge_exchanges(
    messages: Sequence[UserMessage], sessions: Iterable[tuple[int, Sequence[Entry[Payload]]]]
) -> list[Exchange]:
    """Return the exchanges in order.

    A session is given as the number of the last message in its input, and its journal. A message that one session left
    unanswered is answered in the next session. If that message is answered already, the worker speaks first.
    """
    by_number = {message.number: message for message in messages}
    exchanges = {(number, 0): _empty_exchange(number, by_number) for number in by_number}
    last_answered = -1
    for index, (last_message_number, entries) in enumerate(sessions):
        key = (last_message_number, index if last_answered >= last_message_number else 0)
        exchanges.setdefault(key, _empty_exchange(0, by_number))
        for entry in entries:
            if isinstance(entry.data, Said):
                key = (last_message_number + _position(entry), 0)
            elif isinstance(entry.data, ModelAnswered):
                exchanges[key] = _with_response(exchanges[key], entry.data, entry.at)
            if isinstance(entry.data, Listening) or (isinstance(entry.data, ModelAnswered) and entry.data.cut_off):
                last_answered = key[0]
    return [exchanges[key] for key in sorted(exchanges)]


def _position(entry: Entry[Payload]) -> int:
    return int((entry.key or "u0")[1:])


def _empty_exchange(number: int, messages: Mapping[int, UserMessage]) -> Exchange:
    message = messages.get(number)
    return Exchange(
        number=number, user_message=message.text if message else "", answer="", at=message.at if message else ""
    )


def _with_response(exchange: Exchange, answered: ModelAnswered, at: str) -> Exchange:
    parts = cast("list[dict[str, Any]]", answered.response["parts"])
    text = "".join(part["content"] for part in parts if part["part_kind"] == "text").strip()
    calls = tuple(part["tool_name"] for part in parts if part["part_kind"] == "tool-call")
    answer = f"{exchange.answer}\n\n{text}" if exchange.answer and text else exchange.answer or text
    return replace(exchange, answer=answer, calls=(*exchange.calls, *calls), at=exchange.at or at)


def render_transcript(exchanges: Iterable[Exchange], worker: str) -> str:
    """Return the transcript as Markdown, for people and models."""
    parts: list[str] = []
    for exchange in exchanges:
        if exchange.user_message:
            parts.append(f"## User\n\n{exchange.user_message.strip()}")
        used = f"(used {', '.join(dict.fromkeys(exchange.calls))})\n\n" if exchange.calls else ""
        if exchange.answer or used:
            parts.append(f"## {worker}\n\n{used}{exchange.answer}".rstrip())
    return "\n\n".join(parts) + ("\n" if parts else "")


def quote(text: str) -> str:
    """Return a text with a bar before each line, so that a model can tell it from its instructions."""
    return "\n".join(f"| {line}" for line in text.strip().splitlines())


SUMMARISER = "meeting-summariser"
_MAX_TRANSCRIPT_CHARS = 120_000  # from the end
_OMISSION_NOTE = "(Earlier messages are omitted.)\n\n"


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A summary, or the reason for its absence."""

    text: str | None = None
    problem: str | None = None
