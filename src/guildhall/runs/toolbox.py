"""The base toolbox: what every run has without declaring it."""

from __future__ import annotations

from guildhall.tools.define import tool
from guildhall.tools.model import Toolbox


def base_toolbox() -> Toolbox:
    return Toolbox("base", record_decision)


@tool(repeatable=True, runs_in="hall")
def record_decision(question: str, decision: str, reasoning: str) -> str:
    """Record a judgement call that you made on your own, so that a person can review it later.

    Args:
        question: What had to be decided.
        decision: What you decided.
        reasoning: Why.
    """
    return "Recorded."  # the journal holds the call with its arguments: there is nothing else to keep
