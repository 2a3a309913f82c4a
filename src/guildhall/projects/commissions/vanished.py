"""A checkout that somebody has removed while its worker was at it.

It is made again from the branch; what else was in it is gone, and the worker is told before a result of its is taken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.errors import NotFulfilled
from guildhall.jobs.seating import READING, WRITING
from guildhall.jobs.toolbox import SUBMIT
from guildhall.projects.commissions import records
from guildhall.projects.commissions.model import attempt_of
from guildhall.projects.commissions.toolbox import TOOLS
from guildhall.projects.records import note

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from sqlalchemy import Connection

    from guildhall.projects.commissions.ground import Ground
    from guildhall.projects.commissions.model import Commission
    from guildhall.runs.model import Entry

GONE = "its checkout was removed by somebody, and was made again from its branch"
_NAMED = 10


def missed(ground: Ground, place: str) -> None:
    """Notes that a checkout is gone, before it is made again. One in which nobody has worked yet is not missed."""
    id, now = attempt_of(place), ground.now()

    def write(connection: Connection) -> None:
        found = records.find(connection, id) if id is not None else None
        if found is not None and found.place == place and found.status == "in_progress":
            note(connection, found.id, GONE, now)

    ground.store.submit(write).result()


def demand_told(ground: Ground, commission: Commission) -> None:
    """Raises NotFulfilled, once, where work may be gone with a checkout."""
    moments = ground.timeline(commission.id)
    began = max(number for number, one in enumerate(moments) if one.after == "in_progress")
    gone = [one.at for one in moments[began:] if one.reason == GONE]
    if not gone or commission.run is None:
        return
    entries = ground.history.entries(commission.run)
    calls = [one for one in entries if one.kind == "tool_started" and one.at <= gone[-1]]
    changing = [one for one in calls if one.data["tool"] not in (*READING, *TOOLS)]
    if not changing or _was_told(entries, gone[-1]):
        return
    given: list[Mapping[str, Any]] = [one.data["arguments"] or {} for one in changing if one.data["tool"] in WRITING]
    names = list(dict.fromkeys(str(one["file_path"]) for one in given if "file_path" in one))
    written = f": {', '.join(names[:_NAMED])}" if names else ""
    raise NotFulfilled(
        f"{GONE}: what you had done there since you last submitted is gone{written}",
        hint="Look at what is there, do again what is missing, and submit again.",
    )


def _was_told(entries: Sequence[Entry], since: str) -> bool:
    submits = {one.key for one in entries if one.kind == "tool_started" and one.data["tool"] == SUBMIT}
    ended = [one for one in entries if one.kind == "tool_ended" and one.key in submits and one.at >= since]
    return any(GONE in str(one.data["result"]["content"]) for one in ended)
