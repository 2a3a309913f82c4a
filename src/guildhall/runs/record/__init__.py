"""Record of runs: stores and queries journal entries, runs and asks.

Does not change the behaviour of a run.

Invariant: an entry is stored before its effect happens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from guildhall.runs.record.entries import Assembly as Assembly
    from guildhall.runs.record.entries import Entry as Entry
    from guildhall.runs.record.entries import Payload as Payload
    from guildhall.runs.record.journal import Journal as Journal
    from guildhall.runs.record.journal import entries_with as entries_with
    from guildhall.runs.record.queries import History as History

__getattr__, __dir__ = lazy_exports(__name__, __file__)
