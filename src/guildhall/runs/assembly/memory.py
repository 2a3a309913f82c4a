"""Memory of a run: supplies the last block of its system prompt and its memory tools.

Does not compact: it passes a CompactionRequest to `runs.execution.memory_compaction`.

Invariant: the author of a change is the run that made it. No argument of a tool call can name another author.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from guildhall.memory.model import Author
from guildhall.memory.tools import TOOLS, MemoryTools

if TYPE_CHECKING:
    from guildhall.core.request_frame import Frame
    from guildhall.memory.folder import MemoryFolder
    from guildhall.memory.service import Memory
    from guildhall.policy.rules import Rule
    from guildhall.tools.model import Tool
    from guildhall.workers.model import Worker

_READ_RULES = frozenset({"memory_read", "memory.read"})
READ_TOOLS = frozenset({"memory_read", "memory_list"})
_RULES = frozenset({*TOOLS, "memory.read", "memory.write"})


@dataclass(frozen=True, kw_only=True)
class CompactionRequest:
    """A folder that a run has filled so far that compaction is due."""

    folder: MemoryFolder
    run_id: str
    model: str
    frame: Frame
    limit_tokens: int


@dataclass(frozen=True, kw_only=True)
class RunMemory:
    """The memory of a hall, as its runs use it."""

    memory: Memory
    request_compaction: Callable[[CompactionRequest], None]
    had_entries: Callable[[Worker], bool]  # True: as if the memory had entries, because it had when a test was recorded

    def tools(self, worker: Worker, frame: Frame, *, run_id: str, model: str, limit_tokens: int) -> tuple[Tool, ...]:
        def request_compaction(folder: MemoryFolder) -> None:
            self.request_compaction(
                CompactionRequest(folder=folder, run_id=run_id, model=model, frame=frame, limit_tokens=limit_tokens)
            )

        tools = MemoryTools(
            memory=self.memory,
            folders=self.memory.folders(worker, frame),
            author=Author(kind="worker", worker=worker.name, run=run_id),
            limit_tokens=limit_tokens,
            on_compaction_due=request_compaction,
        )
        return tools.tools()

    def has_entries(self, worker: Worker, frame: Frame) -> bool:
        return any(folder.scan().entries for folder in self.memory.folders(worker, frame).values())

    def select_tools(self, tools: Iterable[Tool], worker: Worker, *, has_entries: bool) -> tuple[Tool, ...]:
        """Return the memory tools that are useful: without entries and without a rule, nothing can be read."""
        has_entries = has_entries or self.had_entries(worker)
        is_declared = worker.definition.base is True or any(
            rule.name in _RULES and rule.allowed for rule in worker.rules
        )
        return tuple(tool for tool in tools if has_entries or is_declared or tool.name not in READ_TOOLS)

    async def prompt_block(self, worker: Worker, frame: Frame, rules: Iterable[Rule], *, limit_tokens: int) -> str:
        """Return the memory block, or an empty string if the worker may not read memory without approval."""
        needs_approval = any(rule.approval_required or not rule.allowed for rule in rules if rule.name in _READ_RULES)
        if not worker.definition.base or needs_approval:
            return ""
        folders = self.memory.folders(worker, frame).values()
        return await asyncio.to_thread(self.memory.prompt_block, folders, limit_tokens)
