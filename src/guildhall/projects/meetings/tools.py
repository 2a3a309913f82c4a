"""The worker's side of a meeting: instructions, first message, and the tools to link, propose and summarise.

The tools are link_artifact, propose_followup and summarize_progress.
Does not change anything but the record of the meeting: a proposed follow-up does not create a commission.

Invariant: a repeated call with an equal key has no second effect, which `repeatable` promises.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from guildhall.core.errors import Conflict, UsageError
from guildhall.core.ids import is_name
from guildhall.core.text import check_text, is_text
from guildhall.projects.meetings import records
from guildhall.projects.meetings.context import quote
from guildhall.projects.meetings.model import MAX_LINKED, Exchange, FollowUp, Meeting
from guildhall.projects.model import LORE
from guildhall.projects.records import moments
from guildhall.projects.workspace import in_checkout
from guildhall.tools.definition import bind_tools

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy import Connection

    from guildhall.store.engine import Store
    from guildhall.tools.model import Tool
    from guildhall.workers.model import Worker

SERVER = "meeting"
TOOLS = ("link_artifact", "propose_followup", "summarize_progress")
_MAX_PATH = 500  # characters
_MAX_TITLE = 200
_MAX_PROMPT = 20_000
_MAX_SUMMARY = 20_000
_MAX_FOLLOWUPS = 50
_MAX_QUOTED = 4  # exchanges that a renewed session is given in full
_MAX_QUOTED_CHARS = 40_000  # of these exchanges

_INSTRUCTIONS = """\
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


def meeting_profile(worker: Worker) -> Worker:
    """Return the worker as it is in a meeting: with file tools and these instructions."""
    return in_checkout(worker, _INSTRUCTIONS)


def first_message(meeting: Meeting, texts: Sequence[str]) -> str:
    """Return the first message to the worker: the user's messages, or the reason for the meeting."""
    if meeting.by in ("person", "artifact"):
        # without messages, the conversation is lost with the database of an earlier hall
        return "\n\n".join([*(texts or [_LOST.format(topic=meeting.topic)]), *_linked(meeting)])
    who = "The guild has" if meeting.by == "hall" else "You have"
    parts = [f"{who} asked for this meeting, and the person has come. It is about: {meeting.topic}", *_linked(meeting)]
    begin = "Begin: say in a few sentences what there is to talk about, and what you need."
    return "\n\n".join([*parts, "The person says:", *texts] if texts else [*parts, begin])


def _linked(meeting: Meeting) -> list[str]:
    return ["Linked to this meeting:\n" + "\n".join(f"- {path}" for path in meeting.linked)] if meeting.linked else []


def renewed_message(meeting: Meeting, summary: str | None, exchanges: Sequence[Exchange], texts: Sequence[str]) -> str:
    """Return the first message of a renewed session: summary, last exchanges, then the user's new messages."""
    answered = [exchange for exchange in exchanges if exchange.answer]
    parts = [f"This meeting has been going on for a while; it is about: {meeting.topic}", *_linked(meeting)]
    if summary:
        parts.append(f"What was said so far, in summary:\n\n{quote(summary)}")
    if last := _last_exchanges(answered):
        parts.append("The last that was said, word for word:\n\n" + "\n\n".join(map(_quote_exchange, last)))
    if texts:
        parts.append("Now the person says:\n\n" + "\n\n".join(texts))
    else:
        parts.append("The person has come back. Say in a sentence or two where you were.")
    return "\n\n".join(parts)


def _last_exchanges(exchanges: Sequence[Exchange]) -> list[Exchange]:
    """Return the last exchanges, as many as fit."""
    found: list[Exchange] = []
    room = _MAX_QUOTED_CHARS
    for exchange in reversed(exchanges[-_MAX_QUOTED:]):
        room -= len(exchange.words) + len(exchange.answer)
        if room < 0:
            break
        found.insert(0, exchange)
    return found


def _quote_exchange(exchange: Exchange) -> str:
    message = f"The person:\n{quote(exchange.words)}\n\n" if exchange.words else ""
    return f"{message}You:\n{quote(exchange.answer)}"


def meeting_tools() -> tuple[Tool, ...]:
    """Return the tools as the model sees them."""
    return bind_tools(MeetingTools, dict.fromkeys(TOOLS, ()))


def artifact_in_checkout(worktree: str | None, path: str) -> str:
    """Return the normal form of an artifact's path. Raise UsageError if the meeting's checkout has no such file."""
    parts = PurePosixPath(path).parts if is_text(path) and len(path) <= _MAX_PATH else ()
    if len(parts) < 2 or parts[0] != LORE or any(part in ("..", ".") for part in parts):
        raise UsageError(f"{path[:100]!r} is not an artifact", hint=f"Give a path such as {LORE}/specs/export.md.")
    found = "/".join(parts)
    top = Path(worktree or "/nowhere").resolve()
    here = (top / found).resolve()
    if worktree is None or not here.is_relative_to(top / LORE) or not here.is_file():
        raise UsageError(f"no artifact {found[:100]!r}", hint="artifact_list lists the artifacts.")
    return found


@dataclass(frozen=True, kw_only=True)
class MeetingTools:
    """The tools of one call in a meeting. The model reads the docstrings."""

    meeting: str
    store: Store
    now: Callable[[], str]
    artifact: Callable[[str], str]  # returns the normal form of an artifact's path, or raises if there is no such file
    key: str  # of the call, unique among all runs of the meeting

    async def link_artifact(self, path: str) -> str:
        """Link an artifact to this meeting: one that you have talked about, or that has come out of it. The notes of
        the meeting name it.

        Args:
            path: Its path, such as .lore/specs/export.md. It must be there.
        """
        found = self.artifact(path)

        def write(connection: Connection) -> str:
            meeting = records.get(connection, self.meeting)
            if found in meeting.linked:
                return f"{found} is linked already."
            if len(meeting.linked) >= MAX_LINKED:
                raise Conflict(f"Not linked: a meeting has at most {MAX_LINKED} artifacts.")
            records.change(connection, meeting.id, self.now(), linked=(*meeting.linked, found))
            records.add_note(connection, meeting.id, "link", f"linked {found}", self.now(), path=found)
            return f"Linked: {found}"

        return await self.store.write(write)

    async def propose_followup(self, title: str, prompt: str, worker: str | None = None) -> str:
        """Propose work that should be commissioned after this meeting. It is written down for the person, who decides;
        nothing begins by itself.

        Args:
            title: What it is, in a line.
            prompt: All that whoever does it must know; they have not been here.
            worker: Who should do it, if you know.
        """
        check_text("title", title, _MAX_TITLE)
        check_text("prompt", prompt, _MAX_PROMPT)
        if "\n" in title.strip():
            raise UsageError("title: it is one line")
        if worker is not None and not is_name(worker.rpartition("/")[2]):
            raise UsageError("worker: that cannot be a worker's name")
        proposed = FollowUp(title=title.strip(), prompt=prompt, worker=worker)

        def write(connection: Connection) -> str:
            before = [entry for entry in moments(connection, self.meeting) if entry.kind == "propose_followup"]
            if any(entry.data["key"] == self.key for entry in before):
                return "It is proposed already."
            if len(before) >= _MAX_FOLLOWUPS:
                raise Conflict(f"Not proposed: a meeting has at most {_MAX_FOLLOWUPS} follow-ups.")
            data = {"followup": proposed.as_dict(), "key": self.key}
            text = f"proposed: {proposed.title}"
            records.add_note(connection, self.meeting, "propose_followup", text, self.now(), **data)
            return "Proposed. The person finds it in the notes of the meeting."

        return await self.store.write(write)

    async def summarize_progress(self, summary: str) -> str:
        """Say where this meeting stands: what was talked about, what is agreed, what is open. It replaces what you said
        before, and is what a person sees of the meeting from outside.

        Args:
            summary: A few sentences.
        """
        check_text("summary", summary, _MAX_SUMMARY)

        def write(connection: Connection) -> str:
            records.change(connection, self.meeting, self.now(), summary=summary)
            return "Noted."

        return await self.store.write(write)
