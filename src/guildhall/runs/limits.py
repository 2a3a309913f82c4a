"""Limits of a run: compute the bounds in force and the usage so far, grant more, and report reached limits.

All amounts come from the journal. Does not reserve amounts for calls (`runs.execution.budget`) and does not ask the
user for more (`runs.execution.ledger`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from guildhall.core.clock import moment
from guildhall.core.errors import LimitReached
from guildhall.runs.model import Bounds, Usage
from guildhall.runs.record.entries import (
    Answered,
    Assembly,
    LimitAsked,
    Listening,
    LoopAsked,
    ModelAnswered,
    ModelAsked,
    ModelCallFailed,
    QuestionAsked,
    Resumed,
    ToolAsked,
    ToolDoubted,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from guildhall.runs.record.journal import Journal


LimitName = Literal["max_turns", "max_tokens", "max_budget_usd", "timeout", "budget"]
_UNITS: dict[LimitName, str] = {"max_turns": "turns", "max_tokens": "tokens", "timeout": "seconds"}  # others: USD

# What a run waits after, for a person.
_WAITS = (ToolAsked, ToolDoubted, LimitAsked, LoopAsked, QuestionAsked, Listening)


def current_bounds(journal: Journal) -> Bounds:
    """The bounds that were frozen at the start, with all that has been granted since."""
    bounds = Bounds(**journal.assembly.bounds)
    for entry in journal.entries:
        if isinstance(entry.data, Resumed | Answered) and (granted := entry.data.bounds):
            bounds = replace(bounds, **granted)
    return bounds


def used(journal: Journal) -> Usage:
    """What the answers of this very run have used up, those that were no good included."""
    answers = [entry.data for entry in journal.all(ModelAnswered) if not entry.data.copied]
    failed = [entry.data for entry in journal.all(ModelCallFailed) if not entry.data.copied]
    costs = [call.cost_usd for call in (*answers, *failed)]
    known = [cost for cost in costs if cost is not None]
    return Usage(
        turns=len(answers),
        input_tokens=sum(answer.usage["input_tokens"] for answer in answers),
        output_tokens=sum(answer.usage["output_tokens"] for answer in answers),
        cost_usd=round(sum(known), 9) if known else None,  # without the dust of adding
    )


def usage_with(journal: Journal, input_tokens: int, output_tokens: int, cost: float | None) -> Usage:
    """What the run will have used up with one more answer."""
    answer = Usage(turns=1, input_tokens=input_tokens, output_tokens=output_tokens, cost_usd=cost)
    return Usage.total([used(journal), answer])


@dataclass(frozen=True, kw_only=True)
class Spent:
    """What runs have used up, by what is on record."""

    dollars: float = 0.0
    tokens: int = 0

    @staticmethod
    def by_cut_off_calls(journals: Iterable[Journal]) -> Spent:
        """What was reserved for calls that were cut off, and may have been paid for."""
        calls = [call for journal in journals for call in _cut_off_calls(journal)]
        dollars = sum(call.reserved_usd or 0.0 for call in calls)
        return Spent(dollars=dollars, tokens=sum(call.reserved_tokens for call in calls))

    @staticmethod
    def by(journals: Iterable[Journal]) -> Spent:
        """Return what these runs have spent. A call that was cut off counts with its whole reservation."""
        every = list(journals)
        total, lost = Usage.total(map(used, every)), Spent.by_cut_off_calls(every)
        tokens = total.input_tokens + total.output_tokens + lost.tokens
        return Spent(dollars=(total.cost_usd or 0.0) + lost.dollars, tokens=tokens)


def _cut_off_calls(journal: Journal) -> list[ModelAsked]:
    """Return the model calls that were neither answered nor failed."""
    open_calls: dict[str, ModelAsked] = {}
    lost: list[ModelAsked] = []
    for entry in journal.entries:
        key, call = entry.key or "", entry.data
        if isinstance(call, ModelAsked | ModelAnswered | ModelCallFailed):
            before = open_calls.pop(key, None)
            if isinstance(call, ModelAsked) and not call.copied:
                lost += [before] if before else []
                open_calls[key] = call
    return [*lost, *open_calls.values()]


def format_limit(name: LimitName, value: float) -> str:
    """A limit as people read it: 1 turn, 150 turns, 2.5 USD."""
    unit = _UNITS.get(name, "USD")
    number = f"{value:,}" if isinstance(value, int) else f"{value:g}"
    return f"{number} {unit.removesuffix('s') if value == 1 else unit}"


def reached(
    name: LimitName, bounds: Bounds, run: str, needed: float = 0.0, *, lost: Spent, resumed_by: str | None
) -> LimitReached:
    """Return the error for a limit, with a hint to double it or to grant what is `needed`.

    `lost`: held by calls that were cut off. `resumed_by`: the run to resume, or None for a called run.
    """
    value = getattr(bounds, name)
    if name == "max_turns":
        message, more = f"the run has used its {format_limit(name, value)}", f"--max-turns {value * 2}"
    elif name == "max_tokens":
        message = f"the next model call may take more than what is left of {format_limit(name, value)}"
        more = f"--max-tokens {max(value * 2, round(needed * 1.1))}"
    elif name == "timeout":
        message, more = f"the run has been running for {format_limit(name, value)}", "gives it the same again."
    else:
        message = f"the next model call may cost more than what is left of {format_limit(name, value)}"
        more = f"--budget {max(value * 2, needed * 1.1):g}"
    if name == "max_tokens" and lost.tokens:
        message += f"; {lost.tokens:,} of them are held by calls that were cut off"
    elif name in ("max_budget_usd", "budget") and lost.dollars:
        message += f"; {lost.dollars:.4f} of them are held by calls that were cut off"
    own_file = f"limits.{name} in the worker's file allows more."
    hint = own_file if resumed_by is None else f"guild resume {resumed_by} {more}"
    return LimitReached(f"{name}: {message}", limit=name, run=run, hint=hint)


def seconds_since_start(journal: Journal) -> float:
    """How long a stretch that was never ended had been running, by what it put on record; waiting is not counted."""
    began = max(place for place, entry in enumerate(journal.entries) if isinstance(entry.data, Assembly | Resumed))
    segment = journal.entries[began:]
    return sum(
        (moment(after.at) - moment(before.at)).total_seconds()
        for before, after in pairwise(segment)
        if not isinstance(before.data, _WAITS)
    )
