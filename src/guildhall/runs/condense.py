"""Condensing memory in the background: a run of its own, one at a time, while the worker that caused it goes on.

It is a run like any other, of the worker that comes with Guildhall for it, so that it is journalled, priced and listed.
What came of it is told in the run that caused it, or to whoever closes the hall, and is the reason that its run shows.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from pydantic_ai.usage import RequestUsage

from guildhall.core.clock import stamp
from guildhall.core.errors import GuildError, ModelUnusable, RuntimeFailed
from guildhall.core.events import Event
from guildhall.memory.compact import BUDGET_USD, WORKER, Compaction
from guildhall.runs import records
from guildhall.runs.model import HALL, RunRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from guildhall.core.clock import Clock
    from guildhall.core.events import EventBus
    from guildhall.core.frame import Frame
    from guildhall.memory.memory import Memory
    from guildhall.models.model import Source
    from guildhall.runs.lifecycle import Runs
    from guildhall.runs.remember import Growth
    from guildhall.store.engine import Store

PATIENCE = 60.0  # seconds that a closing hall waits for it
_RECORDING = "replay:"
# As the model door counts them, on the safe side: two bytes of a question are a token; an answer has half the length.
_MANY = 1_000_000  # bytes, to find the price of one
_BYTES_A_TOKEN = 2
_INSTRUCTIONS = 2_000  # bytes: what is sent beside the notes


class Condenser:
    """The compactions of a hall."""

    def __init__(
        self,
        *,
        memory: Memory,
        runs: Runs,
        runs_of: Callable[[str], Runs],
        store: Store,
        bus: EventBus,
        clock: Clock,
    ) -> None:
        """`runs_of`: those among which a run is that has caused a compaction."""
        self._memory = memory
        self._runs = runs
        self._runs_of = runs_of
        self._store = store
        self._bus = bus
        self._clock = clock
        self._one_at_a_time = asyncio.Lock()
        self._under_way: dict[str, asyncio.Task[None]] = {}
        self._in_vain: set[tuple[str, str]] = set()
        self._untold: list[Event] = []

    def start(self, growth: Growth) -> None:
        """Begins, unless it is under way. What a run has caused in vain is not tried again for that run."""
        name = growth.place.name
        if name not in self._under_way and (name, growth.run) not in self._in_vain:
            self._under_way[name] = asyncio.create_task(self._work(growth))

    @property
    def busy(self) -> bool:
        return bool(self._under_way)

    async def settle(self, patience: float = PATIENCE) -> list[Event]:
        """Waits for what is under way, and cuts it off in the end. What came of it and was not told in a run."""
        if tasks := set(self._under_way.values()):
            try:
                await asyncio.wait(tasks, timeout=patience)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        return self.untold()

    def untold(self) -> list[Event]:
        """What has come of it since, and was told in no run."""
        untold, self._untold = self._untold, []
        return untold

    async def _work(self, growth: Growth) -> None:
        asked: list[str] = []
        try:
            async with self._one_at_a_time:
                came = await self._condense(growth, asked)
        except asyncio.CancelledError:
            came = Compaction(place=growth.place, reason="it took too long")
        finally:
            del self._under_way[growth.place.name]
        if not came.done:
            self._in_vain.add((growth.place.name, growth.run))
        if asked:
            await self._store.write(lambda connection: records.change_run(connection, asked[0], reason=str(came)))
        if came.needed:
            self._tell(growth, came, asked)

    async def _condense(self, growth: Growth, asked: list[str]) -> Compaction:
        async def ask(notes: str) -> str:
            return await self._ask(notes, growth, asked)

        try:
            most = self._room(growth)
            return await self._memory.compact(growth.place, ask, limit_tokens=growth.limit_tokens, most=most)
        except GuildError as error:
            return Compaction(place=growth.place, reason=error.message)
        except Exception as error:  # noqa: BLE001 - best effort: whatever it is, it is told, and no worker suffers
            return Compaction(place=growth.place, reason=f"{type(error).__name__}: {error}")

    async def _ask(self, notes: str, growth: Growth, asked: list[str]) -> str:
        # The budget of commands would make it wait for a person; its own limit ends it, and is the smaller one.
        request = RunRequest(
            worker=f"shipped/{WORKER}",
            input=notes,
            override_model=growth.model,
            max_budget_usd=BUDGET_USD,
            budget=2 * BUDGET_USD,
            mode="strict",
        )
        run = await self._runs.to_its_end(request, _of_hall(growth.frame), asked.append)
        if run.status != "completed":
            said = (run.error or {}).get("message") or run.reason or "no reason given"
            raise RuntimeFailed(f"{run.id} {run.status}: {said}")
        return str(run.output)

    def _room(self, growth: Growth) -> int:
        """How many bytes of notes one question may have, for an answer of half the length to be paid for."""
        if growth.model.startswith(_RECORDING):
            raise ModelUnusable("the run's model is a recording, which knows no answer to this")
        source = self._runs.source(growth.model, growth.frame)
        fixed = _price(source, _INSTRUCTIONS // _BYTES_A_TOKEN, 0)
        notes = _price(source, _MANY // _BYTES_A_TOKEN, _MANY // 2 // _BYTES_A_TOKEN)
        if notes <= 0:
            return _MANY
        return max(int((BUDGET_USD - fixed) / notes * _MANY), 0)

    def _tell(self, growth: Growth, came: Compaction, asked: list[str]) -> None:
        data = {"text": str(came), **came.as_dict(), "by": asked[0] if asked else None}
        runs = self._runs_of(growth.run)
        root = runs.root(growth.run)
        event = Event(type="memory_condensed", run=growth.run, root=root, at=stamp(self._clock.now()), data=data)
        if runs.alive(root):
            self._bus.publish(event)
        else:
            self._untold.append(event)


def _of_hall(frame: Frame) -> Frame:
    return replace(frame, caller=HALL, interactive=False)


def _price(source: Source, question: int, answer: int) -> float:
    cost = source.cost(RequestUsage(input_tokens=question, output_tokens=answer))
    if cost is None:
        raise ModelUnusable(f"the model {source.name} has no known price, so {BUDGET_USD:.2f} USD cannot be kept")
    return cost
