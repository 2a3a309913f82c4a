"""What a renewed session may use up: what those before it have left of the meeting's dollars and tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from guildhall.runs.limits import Spent, in_force

if TYPE_CHECKING:
    from guildhall.runs.grants import Grant
    from guildhall.runs.history import History

# Dollars of a session for which nothing is left: it says that at its first question, and how it is given more.
_NEXT_TO_NOTHING = 1e-6


def left(history: History, run: str, grant: Grant | None) -> dict[str, Any]:
    """The limits of the session that follows on this run; the run had what those before it had left."""
    last = history.journal(run)
    below = [history.journal(one.id) for one in history.below(run)]
    bounds, spent = in_force(last), Spent.by([last, *below])
    limits: dict[str, Any] = {}
    dollars, tokens = None, None
    if grant is not None:
        grant.refuse_too_little(last, below)
        dollars, tokens = grant.budget, grant.max_tokens
        limits["max_turns"] = grant.max_turns
    for name in ("max_budget_usd", "budget"):
        if (most := getattr(bounds, name)) is not None:
            limits[name] = max(round((dollars or most) - spent.dollars, 9), _NEXT_TO_NOTHING)
    if (most := tokens or bounds.max_tokens) is not None:
        limits["max_tokens"] = max(most - spent.tokens, 1)
    return limits
