"""Grants: dollars, turns and tokens that the user allows for a new run or for a run that resumes.

Does not compute what a run has used (`runs.limits`) and does not reserve amounts for calls (`budget`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pydantic_ai.usage import RequestUsage

from guildhall.core.errors import ModelUnusable, UsageError
from guildhall.runs.assembly.callees import has_budget
from guildhall.runs.limits import Spent, in_force, in_words
from guildhall.runs.model import check_limits

if TYPE_CHECKING:
    from collections.abc import Iterable

    from guildhall.models.model import Source
    from guildhall.runs.assembly.assembled import Assembled
    from guildhall.runs.record.journal import Journal


@dataclass(frozen=True, kw_only=True)
class Grant:
    """What a run that goes on may use up all told, where that is to be more than before."""

    max_turns: int | None = None
    max_tokens: int | None = None
    budget: float | None = None  # counts for the run's own limit in dollars and for the command's budget

    def __post_init__(self) -> None:
        check_limits(self.max_turns, self.max_tokens, budget=self.budget)

    def bounds(self, journal: Journal, below: Iterable[Journal], source: Source) -> dict[str, Any]:
        """Return the granted bounds. Raise UsageError if the run and the runs `below` it have used them up already."""
        self.refuse_too_little(journal, below)
        granted = {"max_turns": self.max_turns, "max_tokens": self.max_tokens, "budget": self.budget}
        if self.budget is not None:
            refuse_unpriced(source)
            if in_force(journal).max_budget_usd is not None:
                granted["max_budget_usd"] = self.budget
        return {name: value for name, value in granted.items() if value is not None}

    def refuse_too_little(self, journal: Journal, below: Iterable[Journal]) -> None:
        """Raises where a run has used up already what it is to have."""
        used, spent, already = journal.turns(), Spent.by([journal, *below]), None
        if self.max_turns is not None and self.max_turns <= used:
            already = f"max_turns {self.max_turns}: the run has already used {in_words('max_turns', used)}"
        elif self.max_tokens is not None and self.max_tokens <= spent.tokens:
            already = f"max_tokens {self.max_tokens:,}: the run has already used {spent.tokens:,} tokens"
        elif self.budget is not None and self.budget <= spent.dollars:
            already = f"budget {self.budget:g}: the run has already used {spent.dollars:.4f} USD"
        if already is not None:
            raise UsageError(already, hint="The limit is for the whole run: give more than it has used.")


def refuse_unpriced(source: Source) -> None:
    if not has_price(source):
        raise unpriced(source.name)


def unpriced(model: str) -> ModelUnusable:
    return ModelUnusable(
        f"the model {model} has no known price, so a limit in dollars cannot be kept",
        hint="Use a model with a price, or limit it by max_turns instead.",
    )


def has_price(source: Source) -> bool:
    return source.cost(RequestUsage(input_tokens=1000, output_tokens=1000)) is not None


def priced(assembled: Assembled, source: Source, *, limited: bool) -> Assembled:
    """Return the run with the default budget only if it can be enforced: with a price, or for runs that it calls.

    Raise ModelUnusable if another limit in dollars cannot be enforced.
    """
    if limited or assembled.bounds.max_budget_usd is not None:
        refuse_unpriced(source)
    if has_budget(assembled.worker, priced=has_price(source)):
        return assembled
    return replace(assembled, bounds=replace(assembled.bounds, budget=None))
