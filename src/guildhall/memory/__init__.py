"""Memory: stores notes that workers keep between runs, as plain files in three scopes, and logs every change.

Above: runs (adds memory to prompts and starts compactions), hall and cli (the `guild memory` commands).
Below: workers (own the folders), tools (definitions of the memory tools), store (the log), core.
Does not call models: the caller passes in the model call of a compaction. Does not import the sibling packages room,
models and runtimes.

Invariant: the files are the memory. The log only explains how the files came about, and runs never read it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from guildhall.memory.folder import MemoryFolder as MemoryFolder
    from guildhall.memory.model import Author as Author
    from guildhall.memory.model import CompactionResult as CompactionResult
    from guildhall.memory.model import EntryHistory as EntryHistory
    from guildhall.memory.model import Listing as Listing
    from guildhall.memory.model import MemoryEntry as MemoryEntry
    from guildhall.memory.service import Memory as Memory
    from guildhall.memory.tools import MemoryTools as MemoryTools

__getattr__, __dir__ = lazy_exports(__name__, __file__)
