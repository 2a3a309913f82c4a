"""The name that was probably meant: what a person is told who has typed one that there is not."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` was probably meant to be, if one is close."""
    import difflib

    candidates = sorted(known)
    matches = difflib.get_close_matches(name, candidates, n=1, cutoff=0.6)
    if not matches:
        lowered = {candidate.lower(): candidate for candidate in candidates}
        matches = [lowered[m] for m in difflib.get_close_matches(name.lower(), sorted(lowered), n=1, cutoff=0.6)]
    return matches[0] if matches else None


def nearest_or(name: str, known: Iterable[str], otherwise: str) -> str:
    """The hint where there may be too many names to list them: the nearest one, or how to see them."""
    guess = nearest(name, known)
    return f"Did you mean {guess!r}?" if guess else otherwise


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """The hint that goes with an unknown name: the nearest one, or what there is."""
    names = sorted(known)
    if guess := nearest(name, names):
        return f"Did you mean {guess!r}?"
    if not names:
        return None
    shown = ", ".join(names[:12]) + (" ..." if len(names) > 12 else "")
    return f"Known: {shown}."
