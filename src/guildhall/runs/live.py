"""A run that is alive: what it was made ready with, and what it is executed with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

    from guildhall.runs.execute import Execution
    from guildhall.runs.ledger import LiveLedger
    from guildhall.runs.patience import Patience
    from guildhall.runs.prepare import Prepared


@dataclass(frozen=True, kw_only=True)
class Live:
    """A run that is alive, below the one that called it."""

    prepared: Prepared
    ledger: LiveLedger
    patience: Patience
    execution: Execution
    calling: asyncio.Lock  # of the whole tree: calls side by side get their places in the order of the answer
    created: dict[str, str]  # the workers that the tree has made, with the digests of what was approved
    token: str = field(repr=False)  # opens its tool door from outside
    above: Live | None = None

    @property
    def depth(self) -> int:
        return 1 if self.above is None else self.above.depth + 1
