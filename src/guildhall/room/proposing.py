"""The tools with which agents decide something together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from guildhall.core.config import duration
from guildhall.room import proposal_records, proposals
from guildhall.room.model import ProposalType, Resolution, TieBreak  # noqa: TC001 - the schemas are made from them
from guildhall.room.rendering import outcome_text, proposal_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from guildhall.room.model import Actor
    from guildhall.room.room import Room
    from guildhall.room.turn import Turn


class ProposalTools:
    """The proposal tools of one call. The base of all room tools: it has the room, and whose call it is."""

    def __init__(self, room: Room, actor: Actor) -> None:
        self._room = room
        self._actor = actor

    async def proposal_create(
        self,
        type: ProposalType,
        title: str,
        options: list[str] | None = None,
        resolution: Resolution = "plurality",
        binding: bool = True,
        quorum: int | None = None,
        timeout: str | float | None = None,  # noqa: ASYNC109 - of the vote, not of this call
        tie_break: TieBreak = "first",
        guards: list[str] | None = None,
    ) -> str:
        """Put something to the vote of the team. Everybody is told and votes with proposal_vote; so do you.

        Args:
            type: election (who has a role; the title names it), decision (which way), approval (may it be done),
                assignment (who does it; the title is the task).
            title: What is put to the vote, in a line.
            options: What can be chosen. Left out: the agents of the team, or approve and reject. The first option of an
                approval is the one that gives it.
            resolution: plurality (most votes), majority (more than half of all agents), unanimous (all agents).
            binding: Whether the room carries it out; false only records it.
            quorum: How many votes are needed at least; left out: everybody's.
            timeout: How long it is open, such as 10m or 600; left out: until all have voted or nobody can any more.
            tie_break: first (of the tied options), random, creator (your vote decides).
            guards: For a binding approval: documents (notes.md, plan/) and tools that are closed until it passes.
        """
        draft = proposals.Draft(
            type=type,
            title=title,
            options=options or (),
            resolution=resolution,
            binding=binding,
            quorum=quorum,
            timeout=None if timeout is None else duration(timeout),
            tie_break=tie_break,
            guards=guards or (),
        )

        def create(turn: Turn) -> dict[str, Any]:
            proposal = proposals.create(turn, draft)
            return {"text": f"{proposal.id} is open. Vote on it yourself, too.", "id": proposal.id}

        arguments = {name: getattr(draft, name) for name in draft.__dataclass_fields__}
        return await self._do("proposal_create", arguments, create)

    async def proposal_vote(self, proposal: str, choice: str, reason: str | None = None) -> str:
        """Vote on a proposal. While it is open you may vote otherwise.

        Args:
            proposal: Its id, such as p-1.
            choice: One of its options.
            reason: Why, in a line.
        """

        def vote(turn: Turn) -> dict[str, Any]:
            voted, outcome = proposals.vote(turn, proposal, choice, reason)
            return {"text": outcome_text(voted, outcome), "id": voted.id}

        return await self._do("proposal_vote", {"proposal": proposal, "choice": choice, "reason": reason}, vote)

    async def proposal_status(self, proposal: str | None = None) -> str:
        """Show a proposal with its votes, or all proposals.

        Args:
            proposal: Its id, such as p-1; left out: all of them.
        """

        def look(turn: Turn) -> dict[str, Any]:
            room = turn.room.id
            if proposal is not None:
                found = [proposals.proposal_in(turn.connection, room, proposal)]
            else:
                found = proposal_records.all_of(turn.connection, room)
            texts = [proposal_text(one, proposal_records.votes_of(turn.connection, room, one.number)) for one in found]
            return {"text": "\n\n".join(texts) or "There are no proposals."}

        return await self._do("proposal_status", {"proposal": proposal}, look)

    async def proposal_cancel(self, proposal: str) -> str:
        """Take back a proposal that you made.

        Args:
            proposal: Its id, such as p-1.
        """

        def cancel(turn: Turn) -> dict[str, Any]:
            return {"text": f"{proposals.cancel(turn, proposal).id} was taken back."}

        return await self._do("proposal_cancel", {"proposal": proposal}, cancel)

    async def _do(self, op: str, arguments: Mapping[str, Any], do: Callable[[Turn], Mapping[str, Any]]) -> str:
        """Makes the operation; the text of its result."""
        result = await self._room.perform(op, self._actor, arguments, do)
        return result["text"]
