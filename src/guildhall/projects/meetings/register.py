"""The meetings of a hall, for looking: how each stands, what was said, what came out."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from secrets import token_hex
from typing import TYPE_CHECKING

from guildhall.core.clock import stamp
from guildhall.core.errors import NotFound
from guildhall.core.nearest import nearest_or
from guildhall.projects.decisions import decided
from guildhall.projects.meetings import records
from guildhall.projects.meetings.model import MeetingShown
from guildhall.projects.meetings.transcript import as_text, exchanges, followups
from guildhall.projects.records import moments, note, transitions

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from sqlalchemy import Connection

    from guildhall.core.clock import Clock
    from guildhall.core.paths import Home
    from guildhall.projects.meetings.model import Exchange, Meeting, MeetingStatus, Words
    from guildhall.projects.model import Moment, Scope
    from guildhall.runs.history import History
    from guildhall.runs.model import Entry
    from guildhall.store.engine import Store

_log = logging.getLogger("guildhall.meetings")
SITTING = "sitting"  # what a line of the timeline has under this name is one: its run, and what it has heard at first


@dataclass(frozen=True, kw_only=True)
class Sitting:
    """One run of a meeting."""

    run: str
    after: int  # the number of the last words that its first message has


class Register:
    """What is on record about meetings."""

    def __init__(self, *, home: Home, store: Store, clock: Clock, history: History) -> None:
        self.home = home
        self.store = store
        self.clock = clock
        self.history = history

    def now(self) -> str:
        return stamp(self.clock.now())

    def get(self, id: str) -> Meeting:
        found = self.store.read(lambda connection: records.find(connection, id))
        if found is None:
            known = [one.id for one in self.all()]
            hint = nearest_or(id[:60], known, "`guild meeting ls` lists them.")
            raise NotFound(f"there is no meeting {id[:60]!r}", hint=hint)
        return found

    def all(self, project: str | None = None, status: MeetingStatus | None = None) -> list[Meeting]:
        """The meetings, newest first."""
        return self.store.read(lambda connection: records.listed(connection, project, status))

    def timeline(self, id: str) -> list[Moment]:
        return self.store.read(lambda connection: moments(connection, id))

    def revision(self, id: str) -> int:
        """How many transitions there were."""
        return self.store.read(lambda connection: transitions(connection, id))

    def words(self, id: str) -> list[Words]:
        return self.store.read(lambda connection: records.all_words(connection, id))

    def sittings(self, id: str) -> list[Sitting]:
        """The runs that it has had, in their order."""
        return [Sitting(**moment.data[SITTING]) for moment in self.timeline(id) if SITTING in moment.data]

    def add_sitting(self, connection: Connection, meeting: Meeting, sitting: Sitting, reason: str) -> None:
        """A new run of it, in the transaction in which the run is made."""
        now = self.now()
        records.change(connection, meeting.id, now, run=sitting.run, sittings=meeting.sittings + 1)
        records.heard_by(connection, meeting.id, sitting.run, sitting.after)
        note(connection, meeting.id, reason, now, **{SITTING: vars(sitting)})

    def exchanges(self, id: str) -> list[Exchange]:
        """All that was said, over all sittings."""
        return exchanges(self.words(id), [(one.after, self.entries(one)) for one in self.sittings(id)])

    def entries(self, sitting: Sitting) -> Sequence[Entry]:
        return self.history.entries(sitting.run)

    def unanswered(self, id: str) -> list[Words] | None:
        """What the person has said and the worker has not answered; None: it owes no answer, also none to nothing."""
        answered, said = self._answered(id), self.words(id)
        if answered >= (said[-1].number if said else 0):
            return None
        return [one for one in said if one.number > answered]

    def _answered(self, id: str) -> int:
        """The number of the last words that are answered; 0: the worker has begun, where it was to; -1: it has not."""
        for sitting in reversed(self.sittings(id)):
            at = self.stands_at(sitting.run)
            if self._is_cut_off(sitting):
                return sitting.after + at
            if at:
                return sitting.after + at - 1
        return -1

    def _is_cut_off(self, sitting: Sitting) -> bool:
        """Whether the last that its run has said was ended by the person, who has said nothing since."""
        told = [one for one in self.entries(sitting) if one.kind in ("listening", "said", "model_answered")]
        return bool(told) and bool(told[-1].data.get("cut_off"))

    def stands_at(self, run: str) -> int:
        """The how-manieth words a run waits for, or is about to answer; 0: it is at its first message."""
        heard = [one for one in self.history.entries(run) if one.kind in ("listening", "said")]
        return int((heard[-1].key or "u0")[1:]) if heard else 0

    def shown(self, id: str) -> MeetingShown:
        meeting = self.get(id)
        sittings = self.sittings(id)
        timeline = self.timeline(id)
        costs = [self.history.get(one.run).cost_usd for one in sittings]
        known = [cost for cost in costs if cost is not None]
        return MeetingShown(
            meeting=meeting,
            exchanges=self.exchanges(id),
            followups=followups(timeline),
            decisions=[found for one in sittings for found in decided(self.entries(one))],
            timeline=timeline,
            answering=meeting.status == "open" and self.unanswered(id) is not None,
            cost_usd=sum(known) if known else None,
            worktree=self.worktree(meeting),
        )

    def worktree(self, meeting: Meeting) -> str | None:
        """The checkout that the last sitting had, for as long as it is there."""
        if meeting.run is None or meeting.status != "open":
            return None
        worktree = self.history.get(meeting.run).frame.worktree
        return str(worktree) if worktree is not None else None

    def scope(self, meeting: Meeting) -> Scope:
        """How much of the project its worker has in its checkout, as it was when the last sitting began."""
        if meeting.run is None:
            return "sparse"
        definition = self.history.entries(meeting.run)[0].data["worker"]["definition"]
        return "full" if definition.get("checkout") == "full" else "sparse"

    def keep_transcript(self, id: str) -> None:
        """Writes the transcript of an open meeting, as far as it goes. All of it is on record, should this fail."""
        meeting = self.get(id)
        if meeting.status != "open":
            return
        path = self.transcript(meeting)
        title = f"# {meeting.topic}\n\n{meeting.worker} in {meeting.project}, {meeting.id}\n\n"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            fresh = path.with_suffix(f".{token_hex(4)}.fresh")  # two may write it at once
            fresh.write_text(title + as_text(self.exchanges(id), meeting.worker), encoding="utf-8")
            fresh.replace(path)
        except OSError as error:
            _log.warning("%s: the transcript cannot be written: %s", id, error)

    def transcript(self, meeting: Meeting) -> Path:
        """Where the transcript is kept while the meeting is open, for people to read."""
        return self.home.path / "projects" / meeting.project / "meetings" / f"{meeting.id}.md"
