"""How votes decide. Pure: a proposal and its votes in, what comes of it out."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from guildhall.core.ids import fingerprint

if TYPE_CHECKING:
    from collections.abc import Mapping

    from guildhall.room.model import Proposal, ProposalStatus

Ending = Literal["vote", "timeout", "quiet"]  # somebody voted; its time is up; nobody can move any more


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a proposal ended."""

    status: ProposalStatus
    result: str | None
    reason: str


def decide(proposal: Proposal, votes: Mapping[str, str], ending: Ending, at: str) -> Outcome | None:
    """What comes of a proposal with these votes; None: it stays open.

    With every vote: decided once the quorum is there and the rule is met, rejected once it can be met no more. At the
    end of its time it expires. When nobody can move any more the votes that there are decide. An election that would
    end without a winner falls back to the most votes, then to the first name.
    """
    counts = Counter(dict.fromkeys(proposal.options, 0))
    counts.update(choice for agent, choice in votes.items() if agent in proposal.eligible)
    cast = counts.total()
    everyone = len(proposal.eligible)
    told = f"{cast} of {everyone} voted"
    complete = cast >= proposal.quorum
    if complete or (ending == "quiet" and cast):
        winner = _winner(proposal, counts, everyone, votes, at)
        if winner is not None:
            return Outcome(status="resolved", result=winner, reason=told)
        if complete and not _attainable(proposal, counts, everyone - cast, everyone):
            return Outcome(
                status="rejected", result=None, reason=f"no option was {_RULES[proposal.resolution]}; {told}"
            )
    if ending == "vote":
        return None
    why = "its time was up" if ending == "timeout" else "nobody could vote any more"
    if proposal.type == "election":
        most = max(counts.values())
        fallback = next(option for option in proposal.options if counts[option] == most)
        how = "the most votes" if most else "the first name"
        return Outcome(status="expired", result=fallback, reason=f"{why}, so {how} decided; {told}")
    return Outcome(status="expired", result=None, reason=f"{why}; {told}")


_RULES = {"plurality": "ahead", "majority": "chosen by more than half of all", "unanimous": "chosen by all"}


def _winner(proposal: Proposal, counts: Counter[str], everyone: int, votes: Mapping[str, str], at: str) -> str | None:
    most = max(counts.values())
    leading = [option for option in proposal.options if counts[option] == most]
    if proposal.resolution == "majority":
        return leading[0] if 2 * most > everyone else None
    if proposal.resolution == "unanimous":
        return leading[0] if most == everyone else None
    if len(leading) == 1 or proposal.tie_break == "first":
        return leading[0]
    if proposal.tie_break == "creator":
        wish = votes.get(proposal.creator)
        return wish if wish in leading else leading[0]
    # By lot, and yet the same when it is replayed.
    return random.Random(fingerprint([proposal.title, sorted(votes.items()), at])).choice(leading)


def _attainable(proposal: Proposal, counts: Counter[str], left: int, everyone: int) -> bool:
    """Whether those who have not voted yet could still make one of the options win."""
    best = max(counts.values()) + left
    return 2 * best > everyone if proposal.resolution == "majority" else best == everyone
