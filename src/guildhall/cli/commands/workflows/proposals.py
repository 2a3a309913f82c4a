"""`guild proposals TARGET`: prints the proposals of a workflow with their votes and results.

Does not vote. Agents vote with the tools of their room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.cli.argument_parser import parse_target
from guildhall.cli.command import JSON, Context, argument, command

if TYPE_CHECKING:
    from guildhall.hall.client.model import ProposalVotes


@command(argument("target", metavar="TARGET", type=parse_target, help="@workflow:tag"), JSON, event_loop=False)
async def proposals(ctx: Context) -> None:
    client = await ctx.connect("read")
    found = await client.rooms.proposals(ctx.args.target)
    data = {"proposals": [one.as_dict() for one in found]}
    ctx.print_table([_row(one) for one in found], data, empty="No proposals.")


def _row(one: ProposalVotes) -> list[str]:
    proposal = one.proposal
    outcome = f"{proposal.status}: {proposal.result}" if proposal.result else proposal.status
    kind = f"{'binding ' if proposal.binding else ''}{proposal.type}"
    votes = ", ".join(f"{vote.agent} {vote.choice}" for vote in one.votes)
    return [proposal.id, kind, proposal.title, outcome, votes or "no votes"]
