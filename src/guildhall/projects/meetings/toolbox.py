"""The tools of a worker in a meeting: what belongs to it, what is to follow from it, how far it has come.

They change the meeting's record and nothing else. Made again under the same key, a call has no second effect: that is
what `repeatable` says of these tools.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, cast

from guildhall.core.errors import Conflict, UsageError
from guildhall.core.ids import is_name
from guildhall.jobs.toolbox import by_method
from guildhall.projects.meetings import records
from guildhall.projects.meetings.model import MOST_LINKED, FollowUp
from guildhall.projects.meetings.transcript import FOLLOWUP
from guildhall.projects.model import LORE
from guildhall.projects.records import moments, note
from guildhall.runs.model import is_text
from guildhall.runs.texts import check_text
from guildhall.tools.define import tool

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

    from guildhall.store.engine import Store
    from guildhall.tools.model import Tool, ToolCall, ToolResult

SERVER = "meeting"
TOOLS = ("link_artifact", "propose_followup", "summarize_progress")
_LONGEST_PATH = 500
_TITLE = 200  # characters at most
_PROMPT = 20_000
_SUMMARY = 20_000
_MOST_FOLLOWUPS = 50
_KEY = "key"  # of the call that has made a line of the timeline


def meeting_tools() -> tuple[Tool, ...]:
    """The tools as the worker is shown them."""
    verbs = _Verbs(cast("Desk", None), "")
    shown = partial(tool, capabilities=frozenset[str](), repeatable=True, runs_in="run")
    return tuple(shown(name=name)(getattr(verbs, name)) for name in TOOLS)


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
class Desk:
    """Where the calls of the run of a meeting are carried out."""

    meeting: str
    run: str
    store: Store
    now: Callable[[], str]
    artifact: Callable[[str], str]  # the path of an artifact in its one form, if it is there; else it raises

    async def execute(self, tool: Tool, call: ToolCall) -> ToolResult:
        return await by_method(_Verbs(self, f"{self.run}/{call.key}"), tool, call)


class _Verbs:
    """One method for each tool; what the model is told of it is its docstring."""

    def __init__(self, desk: Desk, key: str) -> None:
        self._desk = desk
        self._key = key

    async def link_artifact(self, path: str) -> str:
        """Link an artifact to this meeting: one that you have talked about, or that has come out of it. The notes of
        the meeting name it.

        Args:
            path: Its path, such as .lore/specs/export.md. It must be there.
        """
        desk = self._desk
        found = desk.artifact(path)

        def write(connection: Connection) -> str:
            meeting = records.find(connection, desk.meeting)
            assert meeting is not None
            if found in meeting.linked:
                return f"{found} is linked already."
            if len(meeting.linked) >= MOST_LINKED:
                raise Conflict(f"Not linked: a meeting has at most {MOST_LINKED} artifacts.")
            records.change(connection, meeting.id, desk.now(), linked=[*meeting.linked, found])
            note(connection, meeting.id, f"linked {found}", desk.now(), linked=found)
            return f"Linked: {found}"

        return await desk.store.write(write)

    async def propose_followup(self, title: str, prompt: str, worker: str | None = None) -> str:
        """Propose work that should be commissioned after this meeting. It is written down for the person, who decides;
        nothing begins by itself.

        Args:
            title: What it is, in a line.
            prompt: All that whoever does it must know; they have not been here.
            worker: Who should do it, if you know.
        """
        desk = self._desk
        check_text("title", title, _TITLE)
        check_text("prompt", prompt, _PROMPT)
        if "\n" in title.strip():
            raise UsageError("title: it is one line")
        if worker is not None and not is_name(worker.rpartition("/")[2]):
            raise UsageError("worker: that cannot be a worker's name")
        proposed = FollowUp(title=title.strip(), prompt=prompt, worker=worker)

        def write(connection: Connection) -> str:
            before = [line.data for line in moments(connection, desk.meeting) if FOLLOWUP in line.data]
            if any(data[_KEY] == self._key for data in before):
                return "It is proposed already."
            if len(before) >= _MOST_FOLLOWUPS:
                raise Conflict(f"Not proposed: a meeting has at most {_MOST_FOLLOWUPS} follow-ups.")
            data = {FOLLOWUP: proposed.as_dict(), _KEY: self._key}
            note(connection, desk.meeting, f"proposed: {proposed.title}", desk.now(), **data)
            return "Proposed. The person finds it in the notes of the meeting."

        return await desk.store.write(write)

    async def summarize_progress(self, summary: str) -> str:
        """Say where this meeting stands: what was talked about, what is agreed, what is open. It replaces what you said
        before, and is what a person sees of the meeting from outside.

        Args:
            summary: A few sentences.
        """
        desk = self._desk
        check_text("summary", summary, _SUMMARY)

        def write(connection: Connection) -> str:
            records.change(connection, desk.meeting, desk.now(), summary=summary)
            return "Noted."

        return await desk.store.write(write)
