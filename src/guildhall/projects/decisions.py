"""The judgement calls that workers have put on record, as the journals of their runs have them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.activities.model import Decided
from guildhall.runs.journal import calls_made
from guildhall.runs.toolbox import record_decision

if TYPE_CHECKING:
    from collections.abc import Sequence

    from guildhall.runs.record.entries import Entry, Payload


def decided(entries: Sequence[Entry[Payload]]) -> list[Decided]:
    """Those of one run, in their order."""
    names = ("question", "decision", "reasoning")
    calls = calls_made(entries, record_decision.name)
    return [Decided(**{name: str(call.get(name, "")) for name in names}) for call in calls]
