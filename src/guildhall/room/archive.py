"""The archive of decisions: a document, `decisions.md`, that the room adds to whenever a proposal has a result."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.room import proposal_records as records
from guildhall.room.model import Actor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from guildhall.room.documents import Documents
    from guildhall.room.model import Proposal, Vote
    from guildhall.store.engine import Store


async def archive(store: Store, room: str, documents: Documents) -> None:
    """Archives what is not archived yet, each once: also what a crash has left over."""
    for proposal in store.read(lambda connection: records.unarchived(connection, room)):
        await archive_one(store, room, documents, proposal)


async def archive_one(store: Store, room: str, documents: Documents, proposal: Proposal) -> None:
    """Archives one decision, once."""
    votes = store.read(lambda connection: records.votes_of(connection, room, proposal.number))
    await documents.archive(Actor.system(room, f"archive/{proposal.id}"), entry(proposal, votes))

    def done(connection: Connection) -> None:
        records.change(connection, room, proposal.number, archived=True)

    await store.write(done)


def entry(proposal: Proposal, votes: Sequence[Vote]) -> str:
    """A decision as the archive tells it."""
    force = "binding" if proposal.binding else "advisory"
    lines = [
        f"## {proposal.id} {proposal.title}",
        "",
        f"- Result: **{proposal.result}** ({proposal.status}, {proposal.reason})",
        f"- {proposal.type.capitalize()}, {proposal.resolution}, {force}; proposed by {proposal.creator}",
        f"- {proposal.ended_at}",
    ]
    for option in proposal.options:
        named = [
            f"{vote.agent} ({vote.reason})" if vote.reason else vote.agent for vote in votes if vote.choice == option
        ]
        lines.append(f"- {option}: {', '.join(named) if named else 'nobody'}")
    return "\n".join([*lines, "", ""])
