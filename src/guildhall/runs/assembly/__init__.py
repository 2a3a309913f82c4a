"""Assembly: resolves a worker, a request and a frame into the exact parts of a run.

Does not execute the run and does not record it: `guildhall.runs.execution` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from guildhall.runs.assembly.assembled import Assembled as Assembled
    from guildhall.runs.assembly.assembler import Assembler as Assembler
    from guildhall.runs.assembly.callees import MemberTools as MemberTools
    from guildhall.runs.assembly.memory import RunMemory as RunMemory
    from guildhall.runs.assembly.preflight import Preflight as Preflight
    from guildhall.runs.assembly.tool_sources import ToolboxCache as ToolboxCache

__getattr__, __dir__ = lazy_exports(__name__, __file__)
