"""Grants: dollars, turns and tokens that the user allows for a new run or for a run that resumes.

Does not compute what a run has used (`runs.limits`) and does not reserve amounts for calls (`budget`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pydantic_ai.usage import RequestUsage

from guildhall.core.errors import ModelUnusable, UsageError
from guildhall.models.provider_source import nearest_model
from guildhall.runs.assembly.callees import has_budget
from guildhall.runs.limits import Spent, current_bounds, format_limit
from guildhall.runs.model import check_limits

if TYPE_CHECKING:
    from collections.abc import Iterable

    from guildhall.models.model import Source
    from guildhall.runs.assembly.assembled import Assembled
    from guildhall.runs.record.journal import Journal


@dataclass(frozen=True, kw_only=True)
class Grant:
    """Raised limits of a run that resumes. They count from the start of the run."""

    max_turns: int | None = None
    max_tokens: int | None = None
    budget: float | None = None  # raises `max_budget_usd`, too

    def __post_init__(self) -> None:
        check_limits(self.max_turns, self.max_tokens, budget=self.budget)

    def bounds(self, journal: Journal, children: Iterable[Journal], source: Source) -> dict[str, Any]:
        """Return the granted bounds. Raise UsageError if the run and its child runs have used them already."""
        self.check_above_usage(journal, children)
        granted = {"max_turns": self.max_turns, "max_tokens": self.max_tokens, "budget": self.budget}
        if self.budget is not None:
            check_price(source)
            if current_bounds(journal).max_budget_usd is not None:
                granted["max_budget_usd"] = self.budget
        return {name: value for name, value in granted.items() if value is not None}

    def check_above_usage(self, journal: Journal, children: Iterable[Journal]) -> None:
        """Raise UsageError if the run and its child runs have used the granted amount already."""
        turns, spent, problem = journal.turns(), Spent.in_journals([journal, *children]), None
        if self.max_turns is not None and self.max_turns <= turns:
            problem = f"max_turns {self.max_turns}: the run has already used {format_limit('max_turns', turns)}"
        elif self.max_tokens is not None and self.max_tokens <= spent.tokens:
            problem = f"max_tokens {self.max_tokens:,}: the run has already used {spent.tokens:,} tokens"
        elif self.budget is not None and self.budget <= spent.dollars:
            problem = f"budget {self.budget:g}: the run has already used {spent.dollars:.4f} USD"
        if problem is not None:
            raise UsageError(problem, hint="Limits count from the start of the run: give a higher value.")


def check_price(source: Source) -> None:
    if not has_price(source):
        raise no_price_error(source.name)


def no_price_error(model: str) -> ModelUnusable:
    guess = nearest_model(model) or "Use a model with a price."
    message = f"the model {model} has no known price, so a limit in dollars cannot be enforced"
    return ModelUnusable(message, hint=f"{guess} Or set max_turns instead of the limit in dollars.")


def has_price(source: Source) -> bool:
    return source.cost(RequestUsage(input_tokens=1000, output_tokens=1000)) is not None


def with_enforceable_budget(assembled: Assembled, source: Source, *, limited: bool) -> Assembled:
    """Return the run with the default budget only if it can be enforced: with a price, or for runs that it calls.

    Raise ModelUnusable if another limit in dollars cannot be enforced.
    """
    if limited or assembled.bounds.max_budget_usd is not None:
        check_price(source)
    if has_budget(assembled.worker, priced=has_price(source)):
        return assembled
    return replace(assembled, bounds=replace(assembled.bounds, budget=None))
