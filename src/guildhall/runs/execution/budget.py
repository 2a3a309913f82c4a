"""Budget: reserves dollars and tokens of a model call at every level of the run tree before the call is made.

After the call, the reservation is replaced by the real cost. A call that was cut off counts with its whole reservation.

Does no I/O: the journals have the amounts, and `runs.limits` reads them to build the tree again.

Invariant: at each level with a limit, spent plus reserved amounts do not exceed the limit when a call is reserved.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from guildhall.runs.limits import Spent
    from guildhall.runs.model import Bounds


@dataclass(kw_only=True)
class Budget:
    """One level: a run, a command, a workflow. `limit` None: it only counts."""

    name: str
    owner: str  # the run whose limit it is
    limit: float | None = None
    parent: Budget | None = None
    spent: float = 0.0
    reserved: float = 0.0
    holders: int = 0  # calls under way that hold what is reserved

    @property
    def left(self) -> float | None:
        return None if self.limit is None else max(0.0, self.limit - self.spent - self.reserved)

    def tightest(self) -> Budget | None:
        """The level on the way up that has the least left; None when none has a limit."""
        limited = [level for level in self.levels() if level.limit is not None]
        return min(limited, key=lambda level: level.left or 0.0, default=None)

    def levels(self) -> list[Budget]:
        return [self, *(self.parent.levels() if self.parent else [])]

    def reserve(self, amount: float) -> None:
        for level in self.levels():
            level.reserved += amount
            level.holders += 1

    def settle(self, reserved: float, spent: float) -> None:
        """Turns a reservation into what was really spent."""
        for level in self.levels():
            level.holders -= 1
            level.reserved = max(0.0, level.reserved - reserved) if level.holders > 0 else 0.0  # no dust of adding
            level.spent += spent


@dataclass(frozen=True, kw_only=True)
class InsufficientFunds:
    """A level that has not enough left for a call, and what the call takes at the least."""

    level: Budget
    needed: float


class RunBudget:
    """What the model calls of one run may still take, below that of the run that has called it."""

    def __init__(self, run: str, bounds: Bounds, spent: Spent, above: RunBudget | None) -> None:
        """`spent` is what the run and all that it has called have spent; the levels above know of it already."""
        top = above.dollars if above else Budget(name="budget", owner=run, limit=bounds.budget, spent=spent.dollars)
        self.dollars = Budget(
            name="max_budget_usd", owner=run, limit=bounds.max_budget_usd, parent=top, spent=spent.dollars
        )
        self.tokens = Budget(
            name="max_tokens",
            owner=run,
            limit=bounds.max_tokens,
            parent=above.tokens if above else None,
            spent=spent.tokens,
        )
        self.moved: asyncio.Event = above.moved if above else asyncio.Event()  # something was settled in the tree
        self._held: dict[str, tuple[float, int]] = {}  # dollars and tokens of the calls under way

    def reserve(
        self, key: str, sent: int, price: Callable[[int], float | None], *, floor: int, ceiling: int
    ) -> tuple[float | None, int | None] | InsufficientFunds:
        """Reserve a call with `sent` tokens, and return its dollars and the limit of its answer, if there is one."""
        most: int | None = None
        if (level := self.tokens.tightest()) is not None:
            most = min(int(level.left or 0) - sent, ceiling)
            if most < floor:
                return InsufficientFunds(level=level, needed=sent + floor)
        cost = price(ceiling if most is None else most)
        if cost is not None and (level := self.dollars.tightest()) is not None:
            most = affordable(level.left or 0.0, price, ceiling if most is None else most)
            if most < floor:
                return InsufficientFunds(level=level, needed=price(floor) or 0.0)
            cost = price(most)
        tokens = sent + (ceiling if most is None else most)
        self._held[key] = (cost or 0.0, tokens)
        self.dollars.reserve(cost or 0.0)
        self.tokens.reserve(tokens)
        return cost, most

    async def room(self, short: InsufficientFunds) -> bool:
        """Whether there is room once others have given back what they hold: waits until one of them has."""
        level = short.level
        if level.limit is None or level.holders <= 0 or level.spent + short.needed > level.limit:
            return False
        self.moved.clear()
        await self.moved.wait()
        return True

    @property
    def calls(self) -> int:
        """How many calls are under way."""
        return len(self._held)

    def held(self, key: str) -> int:
        """The tokens that a call under way holds."""
        return self._held[key][1]

    def settle(self, key: str, dollars: float, tokens: int) -> None:
        """Turns what a call holds into what it has really taken."""
        held = self._held.pop(key)
        self.dollars.settle(held[0], dollars)
        self.tokens.settle(held[1], tokens)
        self.moved.set()

    def let_go(self) -> None:
        """At the end of a stretch: a call that was cut off may have been paid for, so all that it holds is spent."""
        for key, held in list(self._held.items()):
            self.settle(key, *held)

    def allow(self, run: str, bounds: Bounds) -> None:
        """Takes over the limits of a run that was granted more."""
        for level in (*self.dollars.levels(), *self.tokens.levels()):
            if level.owner == run:
                level.limit = getattr(bounds, level.name)
        self.moved.set()


def affordable(left: float, price: Callable[[int], float | None], ceiling: int) -> int:
    """How many tokens of answer the rest of a budget pays for; below 0 when it does not even pay for the question."""
    full = price(ceiling) or 0.0
    if full <= left:
        return ceiling
    base = price(0) or 0.0
    rate = (full - base) / ceiling
    return int((left - base) / rate) if rate > 0 else -1
