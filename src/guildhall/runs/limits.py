"""Limits of a run: compute the bounds in force and the usage so far, and describe reached limits.

All amounts come from the journals. Does not reserve amounts for calls (`runs.execution.budget`) and does not ask the
user for more (`runs.execution.call_ledger`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from guildhall.core.clock import parse_stamp
from guildhall.core.errors import LimitReached
from guildhall.runs.model import Ask, Bounds, Usage, parse_amount
from guildhall.runs.record import entries

if TYPE_CHECKING:
    from guildhall.runs.record.journal import Journal


LimitName = Literal["max_turns", "max_tokens", "max_budget_usd", "max_repeats", "timeout", "budget"]
# The unit of other limits is USD.
_UNITS: dict[LimitName, str] = {
    "max_turns": "turns",
    "max_tokens": "tokens",
    "max_repeats": "repeats",
    "timeout": "seconds",
}

# Entries after which the run waits for an answer.
_ASKS = (entries.ToolAsked, entries.ToolDoubted, entries.LimitAsked, entries.LoopAsked, entries.QuestionAsked)


def current_bounds(journal: Journal) -> Bounds:
    """Return the bounds of the run, with all limits that were raised since its start."""
    bounds = Bounds(**journal.assembly.bounds)
    for entry in journal.entries:
        if isinstance(entry.data, entries.Resumed | entries.Answered) and (granted := entry.data.bounds):
            bounds = replace(bounds, **granted)
    return bounds


def raised_bounds(bounds: Bounds, ask: Ask) -> dict[str, Any]:
    """Return the bounds that the answer to a limit ask raises: none, or the limit that is the key of the ask."""
    value = getattr(bounds, ask.key)
    choice = ask.answer.choice if ask.answer else "no"
    more = value if choice == "yes" else parse_amount(choice) or 0
    raised = value + (math.ceil(more) if isinstance(value, int) else more)
    return {ask.key: raised} if raised > value else {}  # a tiny amount may not change a float


def usage_of(journal: Journal) -> Usage:
    """Return the usage of all model calls of the run, without its child runs. Failed calls add only their cost."""
    responses = [entry.data for entry in journal.all(entries.ModelAnswered) if not entry.data.copied]
    failures = [entry.data for entry in journal.all(entries.ModelCallFailed) if not entry.data.copied]
    return Usage.total(
        [
            *(Usage(turns=1, **response.usage, cost_usd=response.cost_usd) for response in responses),
            *(Usage(cost_usd=failure.cost_usd) for failure in failures),
        ]
    )


def usage_with(journal: Journal, tokens: entries.TokenUsage, cost_usd: float | None) -> Usage:
    """Return the usage of the run, including a model response that is not in the journal yet."""
    return Usage.total([usage_of(journal), Usage(turns=1, **tokens, cost_usd=cost_usd)])


@dataclass(frozen=True, kw_only=True)
class Spent:
    """Dollars and tokens that runs have used, according to their journals."""

    dollars: float = 0.0
    tokens: int = 0

    @staticmethod
    def in_cut_off_calls(journals: Iterable[Journal]) -> Spent:
        """Return the reservations of model calls that were cut off. The provider may charge for these calls."""
        calls = [call for journal in journals for call in _cut_off_calls(journal)]
        dollars = sum(call.reserved_usd or 0.0 for call in calls)
        return Spent(dollars=dollars, tokens=sum(call.reserved_tokens for call in calls))

    @staticmethod
    def in_journals(journals: Iterable[Journal]) -> Spent:
        """Return the usage of runs. A model call that was cut off counts with its whole reservation."""
        journals = list(journals)
        total, cut_off = Usage.total(map(usage_of, journals)), Spent.in_cut_off_calls(journals)
        tokens = total.input_tokens + total.output_tokens + cut_off.tokens
        return Spent(dollars=(total.cost_usd or 0.0) + cut_off.dollars, tokens=tokens)


def _cut_off_calls(journal: Journal) -> list[entries.ModelAsked]:
    """Return the model calls that have neither a response nor a failure."""
    open_calls: dict[str, entries.ModelAsked] = {}
    cut_off: list[entries.ModelAsked] = []
    for entry in journal.entries:
        key, call = entry.key or "", entry.data
        if isinstance(call, entries.ModelAsked | entries.ModelAnswered | entries.ModelCallFailed):
            earlier_call = open_calls.pop(key, None)
            if isinstance(call, entries.ModelAsked) and not call.copied:
                cut_off += [earlier_call] if earlier_call else []
                open_calls[key] = call
    return [*cut_off, *open_calls.values()]


def format_limit(name: LimitName, value: float) -> str:
    """Format a limit: 1 turn, 150 turns, 2.5 USD."""
    unit = _UNITS.get(name, "USD")
    number = f"{value:,}" if isinstance(value, int) else format_number(value)
    return f"{number} {unit.removesuffix('s') if value == 1 else unit}"


def format_number(value: float) -> str:
    """Format a number with at most six significant digits, never as 1e-06."""
    return f"{Decimal(f'{value:.6g}'):f}"


def limit_error(
    name: LimitName, bounds: Bounds, run_id: str, needed: float = 0.0, *, cut_off: Spent, run_to_resume: str | None
) -> LimitReached:
    """Return the error for a reached limit. The hint doubles the limit, or raises it above the `needed` amount.

    `cut_off`: the reservations of cut off model calls. `run_to_resume`: None if only the worker file has the limit.
    """
    value = getattr(bounds, name)
    limit, resume = format_limit(name, value), f"guild resume {run_to_resume}"
    message = f"the next model call may exceed the limit of {limit}"
    if name == "max_turns":
        message, hint = f"the run has reached its limit of {limit}", f"{resume} --max-turns {value * 2}"
    elif name == "max_tokens":
        hint = f"{resume} --max-tokens {max(value * 2, round(needed * 1.1))}"
    elif name == "max_repeats":
        message = f"the run has repeated a call {value:,} times in a row, with the same result each time"
        hint = f"Change the instructions or the tools of the worker. Continue anyway: {resume}"
    elif name == "timeout":
        message, hint = f"the run has reached its time limit of {limit}", f"To grant the same time again: {resume}"
    else:
        hint = f"{resume} --budget {format_number(max(value * 2, needed * 1.1))}"
    if name == "max_tokens" and cut_off.tokens:
        message += f"; {cut_off.tokens:,} tokens are reserved for model calls that were cut off"
    elif name in ("max_budget_usd", "budget") and cut_off.dollars:
        message += f"; {cut_off.dollars:.4f} USD are reserved for model calls that were cut off"
    hint = hint if run_to_resume else f"Raise limits.{name} in the worker file."
    return LimitReached(f"{name}: {message}", limit=name, run=run_id, hint=hint)


def last_segment_seconds(journal: Journal) -> float:
    """Return the running time of the last segment, which has no recorded end. Waiting does not count."""
    starts = (entries.Assembly, entries.Resumed)
    start = max(index for index, entry in enumerate(journal.entries) if isinstance(entry.data, starts))
    segment = journal.entries[start:]
    return sum(
        (parse_stamp(after.at) - parse_stamp(before.at)).total_seconds()
        for before, after in pairwise(segment)
        if not isinstance(before.data, (*_ASKS, entries.Listening))
    )
