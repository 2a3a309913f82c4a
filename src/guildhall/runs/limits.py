"""Limits of a run: compute the bounds in force and the usage so far, grant more, and report reached limits.

All amounts come from the journal. Does not reserve amounts for calls (`runs.execution.budget`) and does not ask the
user for more (`runs.execution.call_ledger`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from guildhall.core.clock import parse_stamp
from guildhall.core.errors import LimitReached
from guildhall.runs.model import Bounds, Usage
from guildhall.runs.record import entries

if TYPE_CHECKING:
    from collections.abc import Iterable

    from guildhall.runs.record.journal import Journal


LimitName = Literal["max_turns", "max_tokens", "max_budget_usd", "timeout", "budget"]
_UNITS: dict[LimitName, str] = {"max_turns": "turns", "max_tokens": "tokens", "timeout": "seconds"}  # others: USD

# Entries after which the run waits for an answer.
_ASKS = (entries.ToolAsked, entries.ToolDoubted, entries.LimitAsked, entries.LoopAsked, entries.QuestionAsked)


def current_bounds(journal: Journal) -> Bounds:
    """Return the bounds of the run at its start, with all that has been granted since."""
    bounds = Bounds(**journal.assembly.bounds)
    for entry in journal.entries:
        if isinstance(entry.data, entries.Resumed | entries.Answered) and (granted := entry.data.bounds):
            bounds = replace(bounds, **granted)
    return bounds


def usage_of(journal: Journal) -> Usage:
    """Return the usage of all model calls of the run, without its child runs. Failed calls add only their cost."""
    answers = [entry.data for entry in journal.all(entries.ModelAnswered) if not entry.data.copied]
    failures = [entry.data for entry in journal.all(entries.ModelCallFailed) if not entry.data.copied]
    return Usage.total(
        [
            *(Usage(turns=1, **answer.usage, cost_usd=answer.cost_usd) for answer in answers),
            *(Usage(cost_usd=failure.cost_usd) for failure in failures),
        ]
    )


def usage_with(journal: Journal, input_tokens: int, output_tokens: int, cost: float | None) -> Usage:
    """Return the usage of the run with one more answer."""
    answer = Usage(turns=1, input_tokens=input_tokens, output_tokens=output_tokens, cost_usd=cost)
    return Usage.total([usage_of(journal), answer])


@dataclass(frozen=True, kw_only=True)
class Spent:
    """Dollars and tokens, according to journals."""

    dollars: float = 0.0
    tokens: int = 0

    @staticmethod
    def by_cut_off_calls(journals: Iterable[Journal]) -> Spent:
        """Return the reservations of calls that were cut off, because they may have to be paid."""
        calls = [call for journal in journals for call in _cut_off_calls(journal)]
        dollars = sum(call.reserved_usd or 0.0 for call in calls)
        return Spent(dollars=dollars, tokens=sum(call.reserved_tokens for call in calls))

    @staticmethod
    def by(journals: Iterable[Journal]) -> Spent:
        """Return the spending of runs. A call that was cut off counts with its whole reservation."""
        every = list(journals)
        total, cut_off = Usage.total(map(usage_of, every)), Spent.by_cut_off_calls(every)
        tokens = total.input_tokens + total.output_tokens + cut_off.tokens
        return Spent(dollars=(total.cost_usd or 0.0) + cut_off.dollars, tokens=tokens)


def _cut_off_calls(journal: Journal) -> list[entries.ModelAsked]:
    """Return the model calls that were neither answered nor failed."""
    open_calls: dict[str, entries.ModelAsked] = {}
    cut_off: list[entries.ModelAsked] = []
    for entry in journal.entries:
        key, call = entry.key or "", entry.data
        if isinstance(call, entries.ModelAsked | entries.ModelAnswered | entries.ModelCallFailed):
            before = open_calls.pop(key, None)
            if isinstance(call, entries.ModelAsked) and not call.copied:
                cut_off += [before] if before else []
                open_calls[key] = call
    return [*cut_off, *open_calls.values()]


def format_limit(name: LimitName, value: float) -> str:
    """Format a limit: 1 turn, 150 turns, 2.5 USD."""
    unit = _UNITS.get(name, "USD")
    number = f"{value:,}" if isinstance(value, int) else f"{value:g}"
    return f"{number} {unit.removesuffix('s') if value == 1 else unit}"


def limit_error(
    name: LimitName, bounds: Bounds, run: str, needed: float = 0.0, *, cut_off: Spent, resumed_by: str | None
) -> LimitReached:
    """Return the error for a reached limit, with a hint to double it or to grant the `needed` amount.

    `cut_off`: reserved for calls that were cut off. `resumed_by`: the run to resume, or None for a child run.
    """
    value = getattr(bounds, name)
    if name == "max_turns":
        message, more = f"the run has used its {format_limit(name, value)}", f"--max-turns {value * 2}"
    elif name == "max_tokens":
        message = f"the next model call may need more than the rest of {format_limit(name, value)}"
        more = f"--max-tokens {max(value * 2, round(needed * 1.1))}"
    elif name == "timeout":
        message, more = f"the run has been running for {format_limit(name, value)}", "grants the same time again."
    else:
        message = f"the next model call may cost more than the rest of {format_limit(name, value)}"
        more = f"--budget {max(value * 2, needed * 1.1):g}"
    if name == "max_tokens" and cut_off.tokens:
        message += f"; {cut_off.tokens:,} of them are reserved for calls that were cut off"
    elif name in ("max_budget_usd", "budget") and cut_off.dollars:
        message += f"; {cut_off.dollars:.4f} of them are reserved for calls that were cut off"
    hint = f"Raise limits.{name} in the worker's file." if resumed_by is None else f"guild resume {resumed_by} {more}"
    return LimitReached(f"{name}: {message}", limit=name, run=run, hint=hint)


def seconds_since_start(journal: Journal) -> float:
    """Return how long a segment without a recorded end had been running, not counting the time it waited."""
    starts = (entries.Assembly, entries.Resumed)
    first = max(index for index, entry in enumerate(journal.entries) if isinstance(entry.data, starts))
    segment = journal.entries[first:]
    return sum(
        (parse_stamp(after.at) - parse_stamp(before.at)).total_seconds()
        for before, after in pairwise(segment)
        if not isinstance(before.data, (*_ASKS, entries.Listening))
    )
