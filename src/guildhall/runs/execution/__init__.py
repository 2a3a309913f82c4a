"""Execution: prepares runs, launches them, drives them between the two doors, pauses and resumes them.

Does not replay recorded runs: `guildhall.runs.replay` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from guildhall.runs.execution.call_ledger import CallLedger as CallLedger
    from guildhall.runs.execution.memory_compaction import MemoryCompactor as MemoryCompactor
    from guildhall.runs.execution.preparation import Grant as Grant
    from guildhall.runs.execution.preparation import Prepared as Prepared
    from guildhall.runs.execution.runs import Runs as Runs
    from guildhall.runs.execution.segment import StopSegment as StopSegment
    from guildhall.runs.execution.tokens import RunDoor as RunDoor
    from guildhall.runs.execution.tokens import TokenRegistry as TokenRegistry

__getattr__, __dir__ = lazy_exports(__name__, __file__)
