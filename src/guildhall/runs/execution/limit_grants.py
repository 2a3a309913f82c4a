"""Limit grants: raise the limits of a resumed run, and check that a budget can be enforced.

Does not compute the usage of a run (`runs.limits`) and does not reserve amounts for calls (`runs.execution.budget`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pydantic_ai.usage import RequestUsage

from guildhall.core.errors import ModelUnusable, UsageError
from guildhall.models.provider_source import nearest_model
from guildhall.runs.assembly.callees import has_budget
from guildhall.runs.limits import LimitName, Spent, current_bounds, format_limit
from guildhall.runs.model import check_limits

if TYPE_CHECKING:
    from guildhall.models.model import Source
    from guildhall.runs.assembly.assembled import Assembled
    from guildhall.runs.record.journal import Journal


@dataclass(frozen=True, kw_only=True)
class Grant:
    """Raised limits of a resumed run. They count from the start of the run."""

    max_turns: int | None = None
    max_tokens: int | None = None
    budget: float | None = None  # also replaces `max_budget_usd` if the run has that limit

    def __post_init__(self) -> None:
        check_limits(self.max_turns, self.max_tokens, budget=self.budget)

    def bounds(self, journal: Journal, children: Iterable[Journal], source: Source) -> dict[str, Any]:
        """Return the granted bounds. Raise UsageError if the usage has reached a granted limit."""
        self.check_above_usage(journal, children)
        granted = {"max_turns": self.max_turns, "max_tokens": self.max_tokens, "budget": self.budget}
        if self.budget is not None:
            check_price(source)
            if current_bounds(journal).max_budget_usd is not None:
                granted["max_budget_usd"] = self.budget
        return {name: value for name, value in granted.items() if value is not None}

    def check_above_usage(self, journal: Journal, children: Iterable[Journal]) -> None:
        """Raise UsageError if the usage has reached a granted limit. Only turns exclude child runs."""
        spent = Spent.in_journals([journal, *children])
        amounts: tuple[tuple[LimitName, float | None, float, str], ...] = (
            ("max_turns", self.max_turns, journal.turns(), "the run has"),
            ("max_tokens", self.max_tokens, spent.tokens, "the run and its child runs have"),
            ("budget", self.budget, spent.dollars, "the run and its child runs have"),
        )
        for name, limit, used, owner in amounts:
            if limit is not None and limit <= used:
                reason = f"{owner} already used {format_limit(name, used)}"
                message = f"cannot set {name} to {format_limit(name, limit)}: {reason}"
                raise UsageError(message, hint="Limits count from the start of the run. Set a higher limit.")


def check_price(source: Source) -> None:
    if not has_price(source):
        raise no_price_error(source.name)


def no_price_error(model: str) -> ModelUnusable:
    guess = nearest_model(model) or "Use a model with a price."
    message = f"the model {model} has no known price, so a budget cannot be enforced"
    return ModelUnusable(message, hint=f"{guess} Or set max_turns instead of a budget.")


def has_price(source: Source) -> bool:
    return source.cost(RequestUsage(input_tokens=1000, output_tokens=1000)) is not None


def with_enforceable_budget(assembled: Assembled, source: Source, *, is_required: bool) -> Assembled:
    """Return the run without the budget of the settings if neither the run nor a worker that it calls has a price.

    Raise ModelUnusable if the model has no price and a budget `is_required` or in the worker file.
    """
    if is_required or assembled.bounds.max_budget_usd is not None:
        check_price(source)
    if has_budget(assembled.worker, priced=has_price(source)):
        return assembled
    return replace(assembled, bounds=replace(assembled.bounds, budget=None))
