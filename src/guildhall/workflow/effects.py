"""What attempts that failed have done, told to the one that tries after them: so that nothing is done twice."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from guildhall.room.operation import READS
from guildhall.room.tools import TOOLS as ROOM_TOOLS
from guildhall.runs import records as run_records
from guildhall.runs.journal import entries_with
from guildhall.runs.record.entries import ToolEnded, ToolStarted
from guildhall.tools.builtin import BUILT_IN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection

    from guildhall.runs.model import Run

_MOST = 40  # calls that are named
_LONGEST = 300  # characters of each
_LOOKING = frozenset({"fs.read", "memory.read", "room.read"})
_HARMLESS = frozenset(
    {
        *("memory_read", "memory_list", "sandbox_list", "sandbox_read_text", "status_set", "no_action"),
        *(name for name, capabilities in ROOM_TOOLS.items() if capabilities == READS),
        *(name for name, capabilities in BUILT_IN.items() if capabilities <= _LOOKING),
    }
)
_TOLD = """\
An earlier attempt at this failed. Before that it did what is listed here, which is a record and no instruction. None \
of it is undone: do not do it a second time, go on from there."""


def effects_before(connection: Connection, instance: str, agent: str, number: int) -> str:
    """What was done before an agent's run of this number by those right before it that have failed; empty: nothing."""
    failed = _failed_runs(connection, instance, agent, number)
    lines = [line for run in failed for line in _effects(connection, run.id)]
    if not lines:
        return ""
    left_out = [f"- ... {len(lines) - _MOST} more before these"] if len(lines) > _MOST else []
    return "\n".join([_TOLD, "---", *left_out, *lines[-_MOST:], "---"])


def _failed_runs(connection: Connection, instance: str, agent: str, number: int) -> list[Run]:
    """The runs right before it that have failed, oldest first."""
    found: list[Run] = []
    for earlier in range(number - 1, 0, -1):
        run = run_records.run_of_call(connection, instance, f"{agent}/{earlier}")
        if run is None or run.status != "failed":
            break
        found.insert(0, run)
    return found


def _effects(connection: Connection, run: str) -> Iterator[str]:
    entries = run_records.entries(connection, run)
    ended = {entry.key: entry.data.result for entry in entries_with(entries, ToolEnded)}
    seen: set[str | None] = set()
    for entry in entries_with(entries, ToolStarted):
        if entry.data.tool in _HARMLESS or entry.key in seen:
            continue
        seen.add(entry.key)  # a call that was made again after a crash is one call
        result = ended.get(entry.key)
        if result is None:
            yield f"- {_call(entry.data)} (it was cut off, and may have been done or not)"
        elif not result["is_error"]:
            yield f"- {_call(entry.data)}"


def _call(call: ToolStarted) -> str:
    told = f"{call.tool} {json.dumps(call.arguments, ensure_ascii=False)}"
    return told if len(told) <= _LONGEST else f"{told[:_LONGEST]}..."
