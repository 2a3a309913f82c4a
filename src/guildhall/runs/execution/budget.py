"""Budget: reserves dollars and tokens of a model call at every level of the run tree before the call is made.

After the call, the real usage replaces the reservation. A call that was cut off counts with its whole reservation.

Does no I/O: `runs.limits` reads the earlier usage from the journals.

Invariant: at each level with a limit, spent plus reserved amounts do not exceed the limit when a call is reserved.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from guildhall.runs.limits import Spent
    from guildhall.runs.model import Bounds


@dataclass(kw_only=True)
class BudgetLevel:
    """The dollars or the tokens of one run or command. A level without a limit only counts."""

    name: str
    owner: str  # id of the run that has the limit
    limit: float | None = None
    parent: BudgetLevel | None = None
    spent: float = 0.0
    reserved: float = 0.0
    open_call_count: int = 0

    @property
    def remaining(self) -> float | None:
        return None if self.limit is None else max(0.0, self.limit - self.spent - self.reserved)

    def tightest(self) -> BudgetLevel | None:
        """Return the level from here to the root with the least remaining, or None if no level has a limit."""
        limited = [level for level in self.levels() if level.limit is not None]
        return min(limited, key=lambda level: level.remaining or 0.0, default=None)

    def levels(self) -> list[BudgetLevel]:
        return [self, *(self.parent.levels() if self.parent else [])]

    def reserve(self, amount: float) -> None:
        for level in self.levels():
            level.reserved += amount
            level.open_call_count += 1

    def settle(self, reserved: float, spent: float) -> None:
        """Replace a reservation by the amount that was spent."""
        for level in self.levels():
            level.open_call_count -= 1
            # Exactly 0 without open calls, because sums of floats have rounding errors.
            level.reserved = max(0.0, level.reserved - reserved) if level.open_call_count > 0 else 0.0
            level.spent += spent


@dataclass(frozen=True, kw_only=True)
class InsufficientFunds:
    """A level that cannot cover a call, and the smallest amount that the call needs."""

    level: BudgetLevel
    needed: float


class RunBudget:
    """The dollars and tokens that the model calls of one run may still use."""

    def __init__(self, run_id: str, bounds: Bounds, spent: Spent, parent: RunBudget | None) -> None:
        """`spent`: usage of the run and its child runs. The levels of the parent include this usage."""
        root = BudgetLevel(name="budget", owner=run_id, limit=bounds.budget, spent=spent.dollars)
        self.dollars = BudgetLevel(
            name="max_budget_usd",
            owner=run_id,
            limit=bounds.max_budget_usd,
            parent=parent.dollars if parent else root,
            spent=spent.dollars,
        )
        self.tokens = BudgetLevel(
            name="max_tokens",
            owner=run_id,
            limit=bounds.max_tokens,
            parent=parent.tokens if parent else None,
            spent=spent.tokens,
        )
        self.changed: asyncio.Event = parent.changed if parent else asyncio.Event()  # shared by all runs of the tree
        self._reserved: dict[str, tuple[float, int]] = {}  # dollars and tokens of the open calls

    def reserve(
        self, key: str, input_tokens: int, price: Callable[[int], float | None], *, floor: int, ceiling: int
    ) -> tuple[float | None, int | None] | InsufficientFunds:
        """Reserve a call, and return its maximum cost and the maximum tokens of its response.

        `floor` and `ceiling` are response tokens, and `price` returns the cost for a number of response tokens. The
        cost is None if the model has no price. The maximum is None if no level has a limit.
        """
        max_output: int | None = None
        if (level := self.tokens.tightest()) is not None:
            max_output = min(int(level.remaining or 0) - input_tokens, ceiling)
            if max_output < floor:
                return InsufficientFunds(level=level, needed=input_tokens + floor)
        cost = price(ceiling if max_output is None else max_output)
        if cost is not None and (level := self.dollars.tightest()) is not None:
            max_output = affordable_tokens(level.remaining or 0.0, price, ceiling if max_output is None else max_output)
            if max_output < floor:
                return InsufficientFunds(level=level, needed=price(floor) or 0.0)
            cost = price(max_output)
        tokens = input_tokens + (ceiling if max_output is None else max_output)
        self._reserved[key] = (cost or 0.0, tokens)
        self.dollars.reserve(cost or 0.0)
        self.tokens.reserve(tokens)
        return cost, max_output

    async def wait_for_release(self, shortage: InsufficientFunds) -> bool:
        """Wait until an open call settles. Return False at once if settling the open calls cannot cover the call."""
        level = shortage.level
        if level.limit is None or level.open_call_count <= 0 or level.spent + shortage.needed > level.limit:
            return False
        self.changed.clear()
        await self.changed.wait()
        return True

    @property
    def open_call_count(self) -> int:
        return len(self._reserved)

    def reserved_tokens(self, key: str) -> int:
        return self._reserved[key][1]

    def settle(self, key: str, dollars: float, tokens: int) -> None:
        """Replace the reservation of a call by the amounts that it used."""
        reserved_dollars, reserved_tokens = self._reserved.pop(key)
        self.dollars.settle(reserved_dollars, dollars)
        self.tokens.settle(reserved_tokens, tokens)
        self.changed.set()

    def settle_all(self) -> None:
        """Count the reservations of all open calls as spent, because the provider may charge for a cut off call."""
        for key, reserved in list(self._reserved.items()):
            self.settle(key, *reserved)

    def update_limits(self, run_id: str, bounds: Bounds) -> None:
        """Apply the raised bounds of a run to its levels."""
        for level in (*self.dollars.levels(), *self.tokens.levels()):
            if level.owner == run_id:
                level.limit = getattr(bounds, level.name)
        self.changed.set()


def affordable_tokens(budget_usd: float, price: Callable[[int], float | None], ceiling: int) -> int:
    """Return how many response tokens a budget pays for. Negative if the budget does not pay for the input."""
    full_usd = price(ceiling) or 0.0
    if full_usd <= budget_usd:
        return ceiling
    input_usd = price(0) or 0.0
    usd_per_token = (full_usd - input_usd) / ceiling
    return int((budget_usd - input_usd) / usd_per_token) if usd_per_token > 0 else -1
