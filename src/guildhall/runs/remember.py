"""What a run has of the memory: the last block of its system prompt, and the tools that read and write more of it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from guildhall.memory.inject import render
from guildhall.memory.model import Writer
from guildhall.memory.toolbox import memory_toolbox

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from guildhall.core.frame import Frame
    from guildhall.memory.memory import Memory
    from guildhall.memory.model import Place
    from guildhall.policy.model import Rule
    from guildhall.tools.model import Tool
    from guildhall.workers.model import Worker

_READING = frozenset({"memory_read", "memory.read"})


@dataclass(frozen=True, kw_only=True)
class Growth:
    """A scope that a run has made ready for compaction."""

    place: Place
    run: str
    model: str
    frame: Frame
    limit_tokens: int


@dataclass(frozen=True, kw_only=True)
class Remembering:
    """The memory of a hall, as its runs have it. `grown` hears of a scope that is ready for compaction."""

    memory: Memory
    grown: Callable[[Growth], None]

    def tools(self, worker: Worker, frame: Frame, *, run: str, model: str, limit_tokens: int) -> tuple[Tool, ...]:
        """The memory tools of one run. Who writes is known here, and nowhere claimed."""

        def grown(place: Place) -> None:
            self.grown(Growth(place=place, run=run, model=model, frame=frame, limit_tokens=limit_tokens))

        places = self.memory.places(worker, frame)
        writer = Writer(by="worker", worker=worker.name, run=run)
        return memory_toolbox(self.memory, places, writer, limit_tokens=limit_tokens, grown=grown).tools

    async def block(self, worker: Worker, frame: Frame, rules: Iterable[Rule], *, limit_tokens: int) -> str:
        """The last block of the prompt; empty where there is nothing, or where reading is not simply allowed."""
        refused = any(rule.name in _READING and (not rule.allowed or rule.approval_required) for rule in rules)
        if refused or not worker.definition.base:
            return ""
        places = self.memory.places(worker, frame).values()
        return render(await asyncio.to_thread(self.memory.select, places, limit_tokens))
