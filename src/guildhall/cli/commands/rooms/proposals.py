"""`guild proposals`: what a team has put to the vote, and what came of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.cli import exit_codes
from guildhall.cli.connection import with_look
from guildhall.cli.targets import target_of

if TYPE_CHECKING:
    import argparse

    from guildhall.cli.screen import Screen
    from guildhall.core.frame import Frame
    from guildhall.hall.client.interface import HallClient, Voted


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="TARGET", help="@workflow:tag")
    parser.add_argument("--json", action="store_true", help="print an object")


def main(args: argparse.Namespace, screen: Screen) -> int:
    target = target_of(args.target)

    async def work(client: HallClient, frame: Frame) -> int:
        found = await client.rooms.proposals(target)
        if args.json:
            screen.json({"proposals": [one.as_dict() for one in found]})
        elif not found:
            screen.note("Nothing was put to the vote.")
        else:
            screen.table([_row(one) for one in found])
        return exit_codes.DONE

    return with_look(work, screen)


def _row(one: Voted) -> list[str]:
    proposal = one.proposal
    came = f"{proposal.status}: {proposal.result}" if proposal.result else proposal.status
    kind = f"{'binding ' if proposal.binding else ''}{proposal.type}"
    votes = ", ".join(f"{vote.agent} {vote.choice}" for vote in one.votes)
    return [proposal.id, kind, proposal.title, came, votes or "no votes"]
