"""The values that jobs, commissions and meetings share: questions, decisions, the contract of a result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

READING = ("Read", "Grep", "Glob")  # file tools that every activity gives to its worker
WRITING = ("Write", "Edit")  # file tools of commissions and meetings; a job has none


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A question of the worker, with the user's answer."""

    ask: str  # its id in the inbox
    at: str
    question: str
    answer: str | None = None

    def as_dict(self) -> dict[str, Any]:
        return {"ask": self.ask, "question": self.question, "answer": self.answer}


@dataclass(frozen=True, kw_only=True)
class Decided:
    """A decision that the worker made on its own."""

    question: str
    decision: str
    reasoning: str

    def as_wire(self) -> dict[str, Any]:
        return {"question": self.question, "decision": self.decision, "reasoning": self.reasoning}
