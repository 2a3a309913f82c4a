"""The worker's side of a meeting: instructions, input, and the tools to link, propose and summarise.

Does not create commissions: a follow-up is recorded in the notes.

Invariant: the tools are idempotent by the key of the call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from guildhall.core.errors import Conflict, UsageError
from guildhall.core.ids import is_name
from guildhall.core.text_checks import check_line, check_text, is_text
from guildhall.projects.activity_records import list_timeline
from guildhall.projects.meetings import records
from guildhall.projects.meetings.context import quote
from guildhall.projects.meetings.model import MAX_LINKED, Exchange, FollowUp, Meeting
from guildhall.projects.model import LORE, is_hall_path
from guildhall.projects.workspace import checkout_profile
from guildhall.tools.definition import bind_tools

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from guildhall.projects.git.integration_branch import Branches
    from guildhall.projects.meetings.context import MeetingContext
    from guildhall.tools.model import Tool
    from guildhall.workers.model import Worker

SERVER = "meeting"
TOOLS = ("link_artifact", "propose_followup", "summarize_progress")
_MAX_PATH_CHARS = 500
_MAX_TITLE_CHARS = 200
_MAX_PROMPT_CHARS = 20_000
_MAX_SUMMARY_CHARS = 20_000
_MAX_FOLLOWUPS = 50
_MAX_QUOTED_EXCHANGES = 4  # in the input of a renewed session
_MAX_QUOTED_CHARS = 40_000

_INSTRUCTIONS = """\
You are in a meeting with the user, who reads your messages as you write them. The user may leave and come back days \
later; only the user closes the meeting. Answer each message, then wait for the next one.
You work in a checkout of the project that belongs to this meeting. Your changes are merged into the project when the \
meeting is closed.
- link_artifact: link the artifacts that the meeting is about or that it produces.
- record_decision: record each decision, of the user or of you, with its reason. It goes into the notes.
- propose_followup: propose work for a later commission. Only the user starts it.
- summarize_progress: your summary of the meeting in a few sentences. Call it whenever the state changes."""
_LOST = """\
You are in a meeting about: {topic}
The conversation so far is lost. Say so in one sentence, and ask the user where to continue."""


def meeting_profile(worker: Worker) -> Worker:
    """Return the worker with file tools and the instructions for a meeting."""
    return checkout_profile(worker, _INSTRUCTIONS)


def first_message(meeting: Meeting, text: str | None) -> str:
    """Return the input of the first session: the user's first message, or the request for the meeting."""
    if meeting.by in ("person", "artifact"):
        # A meeting that was rebuilt from its artifact has no messages.
        return "\n\n".join([text or _LOST.format(topic=meeting.topic), *_linked_paths(meeting)])
    requester = "The hall" if meeting.by == "hall" else "You"
    parts = [
        f"{requester} requested this meeting, and the user has joined. Topic: {meeting.topic}",
        *_linked_paths(meeting),
    ]
    start = "Start: explain in a few sentences what to discuss and what you need."
    return "\n\n".join([*parts, "The user says:", text] if text else [*parts, start])


def _linked_paths(meeting: Meeting) -> list[str]:
    return ["Linked to this meeting:\n" + "\n".join(f"- {path}" for path in meeting.linked)] if meeting.linked else []


def renewed_message(meeting: Meeting, summary: str | None, exchanges: Sequence[Exchange], text: str | None) -> str:
    """Return the input of a renewed session: the summary, the last exchanges and the first unanswered user message."""
    answered = [exchange for exchange in exchanges if exchange.answer]
    parts = [f"This session continues an earlier meeting. Topic: {meeting.topic}", *_linked_paths(meeting)]
    if summary:
        parts.append(f"Summary of the conversation so far:\n\n{quote(summary)}")
    if last := _last_exchanges(answered):
        parts.append("The last messages, verbatim:\n\n" + "\n\n".join(map(_quote_exchange, last)))
    if text:
        parts.append(f"The user now says:\n\n{text}")
    else:
        parts.append("The user has come back. Say in one or two sentences where the conversation stopped.")
    return "\n\n".join(parts)


def _last_exchanges(exchanges: Sequence[Exchange]) -> list[Exchange]:
    quoted: list[Exchange] = []
    remaining_chars = _MAX_QUOTED_CHARS
    for exchange in reversed(exchanges[-_MAX_QUOTED_EXCHANGES:]):
        remaining_chars -= len(exchange.user_message) + len(exchange.answer)
        if remaining_chars < 0:
            break
        quoted.insert(0, exchange)
    return quoted


def _quote_exchange(exchange: Exchange) -> str:
    message = f"The user:\n{quote(exchange.user_message)}\n\n" if exchange.user_message else ""
    return f"{message}You:\n{quote(exchange.answer)}"


def meeting_tools() -> tuple[Tool, ...]:
    return bind_tools(MeetingTools, dict.fromkeys(TOOLS, ()))


def find_artifact(worktree: str | None, branches: Branches, path: str) -> str:
    """Return the normalised path of an artifact in the meeting's checkout, or of a record of the hall.

    Raise UsageError if there is no such file.
    """
    parts = PurePosixPath(path).parts if is_text(path) and len(path) <= _MAX_PATH_CHARS else ()
    if len(parts) < 2 or parts[0] != LORE or any(part in ("..", ".") for part in parts):
        hint = f"Give a path such as {LORE}/specs/export.md."
        raise UsageError(f"invalid artifact path {path[:100]!r}: not a path below {LORE}", hint=hint)
    normalised = "/".join(parts)
    if is_hall_path(normalised):
        exists = branches.has_file(normalised)
    else:
        root = Path(worktree or "/nowhere").resolve()
        file = (root / normalised).resolve()
        exists = worktree is not None and file.is_relative_to(root / LORE) and file.is_file()
    if not exists:
        raise UsageError(f"artifact not found: {normalised[:100]!r}", hint="artifact_list lists the artifacts.")
    return normalised


@dataclass(frozen=True, kw_only=True)
class MeetingTools:
    """The tools of one call in a meeting. The model reads the docstrings."""

    context: MeetingContext
    meeting_id: str
    key: str  # idempotency key of the call, unique among all runs of the meeting

    async def link_artifact(self, path: str) -> str:
        """Link an artifact that this meeting is about or that it produces. The notes of the meeting list it.

        Args:
            path: Path of an existing artifact, such as .lore/specs/export.md.
        """
        meeting = self.context.get(self.meeting_id)
        checkout, branches = self.context.checkout_path(meeting), self.context.branches_of(meeting)
        artifact = await asyncio.to_thread(find_artifact, checkout, branches, path)

        def write(connection: Connection) -> str:
            meeting = records.get(connection, self.meeting_id)
            if artifact in meeting.linked:
                return f"Already linked: {artifact}"
            if len(meeting.linked) >= MAX_LINKED:
                message = f"cannot link {artifact}: {MAX_LINKED} artifacts are linked (the maximum)"
                raise Conflict(message, hint="Name it in your summary instead.")
            records.update_fields(connection, meeting.id, self.context.now(), linked=(*meeting.linked, artifact))
            records.add_note(connection, meeting.id, "link", f"linked {artifact}", self.context.now(), path=artifact)
            return f"Linked: {artifact}"

        return await self.context.store.write(write)

    async def propose_followup(self, title: str, prompt: str, worker: str | None = None) -> str:
        """Propose work for a commission after this meeting. It is recorded in the notes; only the user starts it.

        Args:
            title: The task in one line.
            prompt: Everything that the worker needs to know. It does not see this conversation.
            worker: Name of a suitable worker, if you know one.
        """
        check_line("title", title.strip(), _MAX_TITLE_CHARS)
        check_text("prompt", prompt, _MAX_PROMPT_CHARS)
        if worker is not None and not is_name(worker.rpartition("/")[2]):
            raise UsageError(f"invalid worker name {worker[:60]!r}", hint="Use the name of a worker, or omit it.")
        followup = FollowUp(title=title.strip(), prompt=prompt, worker=worker)

        def write(connection: Connection) -> str:
            timeline = list_timeline(connection, self.meeting_id)
            proposals = [entry for entry in timeline if entry.kind == "propose_followup"]
            if any(entry.data["key"] == self.key for entry in proposals):
                return "Already proposed."
            if len(proposals) >= _MAX_FOLLOWUPS:
                message = f"cannot propose a follow-up: {_MAX_FOLLOWUPS} are proposed (the maximum)"
                raise Conflict(message, hint="Name it in your summary instead.")
            data = {"followup": asdict(followup), "key": self.key}
            text = f"proposed: {followup.title}"
            records.add_note(connection, self.meeting_id, "propose_followup", text, self.context.now(), **data)
            return "Proposed. The user finds it in the notes of the meeting."

        return await self.context.store.write(write)

    async def summarize_progress(self, summary: str) -> str:
        """Summarise the meeting so far: topics, agreements, open points. It replaces your last summary and is shown to
        users who are not in the meeting.

        Args:
            summary: A few sentences.
        """
        check_text("summary", summary, _MAX_SUMMARY_CHARS)
        now = self.context.now()
        await self.context.store.write(lambda c: records.update_fields(c, self.meeting_id, now, summary=summary))
        return "Summary saved."
