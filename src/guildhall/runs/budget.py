"""Dollars as a tree: a call is reserved at every level above it before it is made.

Pure bookkeeping in memory; the amounts themselves are in the journals, from which a tree is built again.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(kw_only=True)
class Budget:
    """One level: a run, a command, a workflow. `limit` None: it only counts."""

    name: str
    limit: float | None = None
    parent: Budget | None = None
    spent: float = 0.0
    reserved: float = 0.0

    @property
    def left(self) -> float | None:
        """What may still be reserved here."""
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

    def settle(self, reserved: float, spent: float) -> None:
        """Turns a reservation into what was really spent."""
        for level in self.levels():
            level.reserved = max(0.0, level.reserved - reserved)
            level.spent += spent
