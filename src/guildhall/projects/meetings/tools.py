"""The tools of a worker in a meeting: link artifacts, propose follow-up work, summarise.

They change the meeting's record and nothing else. A repeated call with the same key has no second effect, which is what
`repeatable` promises.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from guildhall.core.errors import Conflict, UsageError
from guildhall.core.ids import is_name
from guildhall.core.text import check_text, is_text
from guildhall.projects.meetings import records
from guildhall.projects.meetings.model import MOST_LINKED, FollowUp
from guildhall.projects.meetings.transcript import FOLLOWUP
from guildhall.projects.model import LORE
from guildhall.projects.records import moments, note
from guildhall.tools.define import bind_tools

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

    from guildhall.store.engine import Store
    from guildhall.tools.model import Tool

SERVER = "meeting"
TOOLS = ("link_artifact", "propose_followup", "summarize_progress")
_LONGEST_PATH = 500
_TITLE = 200  # characters at most
_PROMPT = 20_000
_SUMMARY = 20_000
_MOST_FOLLOWUPS = 50
_KEY = "key"  # of the call that has made a line of the timeline


def meeting_tools() -> tuple[Tool, ...]:
    """Return the tools as the model sees them."""
    return bind_tools(MeetingTools, dict.fromkeys(TOOLS, ()))


def linkable(worktree: str | None, path: str) -> str:
    """The path of an artifact in its one form, if it is there in the meeting's checkout."""
    parts = PurePosixPath(path).parts if is_text(path) and len(path) <= _LONGEST_PATH else ()
    if len(parts) < 2 or parts[0] != LORE or any(part in ("..", ".") for part in parts):
        raise UsageError(f"{path[:100]!r} is no artifact", hint=f"Give a path such as {LORE}/specs/export.md.")
    found = "/".join(parts)
    top = Path(worktree or "/nowhere").resolve()
    here = (top / found).resolve()
    if worktree is None or not here.is_relative_to(top / LORE) or not here.is_file():
        raise UsageError(f"there is no artifact {found[:100]!r}", hint="artifact_list names those that are there.")
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
            meeting = records.find(connection, self.meeting)
            assert meeting is not None
            if found in meeting.linked:
                return f"{found} is linked already."
            if len(meeting.linked) >= MOST_LINKED:
                raise Conflict(f"Not linked: a meeting has at most {MOST_LINKED} artifacts.")
            records.change(connection, meeting.id, self.now(), linked=[*meeting.linked, found])
            note(connection, meeting.id, f"linked {found}", self.now(), linked=found)
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
        check_text("title", title, _TITLE)
        check_text("prompt", prompt, _PROMPT)
        if "\n" in title.strip():
            raise UsageError("title: it is one line")
        if worker is not None and not is_name(worker.rpartition("/")[2]):
            raise UsageError("worker: that cannot be a worker's name")
        proposed = FollowUp(title=title.strip(), prompt=prompt, worker=worker)

        def write(connection: Connection) -> str:
            before = [line.data for line in moments(connection, self.meeting) if FOLLOWUP in line.data]
            if any(data[_KEY] == self.key for data in before):
                return "It is proposed already."
            if len(before) >= _MOST_FOLLOWUPS:
                raise Conflict(f"Not proposed: a meeting has at most {_MOST_FOLLOWUPS} follow-ups.")
            data = {FOLLOWUP: proposed.as_dict(), _KEY: self.key}
            note(connection, self.meeting, f"proposed: {proposed.title}", self.now(), **data)
            return "Proposed. The person finds it in the notes of the meeting."

        return await self.store.write(write)

    async def summarize_progress(self, summary: str) -> str:
        """Say where this meeting stands: what was talked about, what is agreed, what is open. It replaces what you said
        before, and is what a person sees of the meeting from outside.

        Args:
            summary: A few sentences.
        """
        check_text("summary", summary, _SUMMARY)

        def write(connection: Connection) -> str:
            records.change(connection, self.meeting, self.now(), summary=summary)
            return "Noted."

        return await self.store.write(write)
