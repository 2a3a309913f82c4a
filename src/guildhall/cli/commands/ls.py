"""`guild ls`: what needs you, what is working, what is done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from guildhall.cli import exit_codes
from guildhall.cli.lines import age
from guildhall.cli.reach import with_hall
from guildhall.cli.screen import money
from guildhall.cli.visible import one_line
from guildhall.core.clock import SystemClock

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from guildhall.cli.screen import Screen
    from guildhall.core.frame import Frame
    from guildhall.hall.client import HallClient
    from guildhall.runs.model import Ask, Run

_SHOWN = 10  # finished runs, unless all are wanted


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--all", action="store_true", help=f"every run, not just the newest {_SHOWN} that are done")
    parser.add_argument("--json", action="store_true", help="print an object with needs_you, working and done")


@dataclass(frozen=True, kw_only=True)
class Groups:
    """What there is, by what it means for the person."""

    asks: Sequence[Ask]
    stopped: Sequence[Run]  # go on only when told to
    working: Sequence[Run]
    done: Sequence[Run]

    @staticmethod
    def of(runs: Sequence[Run], asks: Sequence[Ask]) -> Groups:
        asked = {ask.run for ask in asks}
        return Groups(
            asks=asks,
            stopped=[
                run
                for run in runs
                if run.status in ("lost", "parked") or (run.status == "waiting" and run.id not in asked)
            ],
            working=[run for run in runs if run.status == "running"],
            done=[run for run in runs if run.status in ("completed", "failed", "cancelled")],
        )

    def as_dict(self) -> dict[str, Any]:
        return {
            "needs_you": {
                "asks": [ask.as_dict() for ask in self.asks],
                "runs": [run.as_dict() for run in self.stopped],
            },
            "working": [run.as_dict() for run in self.working],
            "done": [run.as_dict() for run in self.done],
        }


def main(args: argparse.Namespace, screen: Screen) -> int:
    async def work(client: HallClient, frame: Frame) -> int:
        groups = Groups.of(await client.runs(everything=args.all), await client.asks())
        if args.json:
            screen.json(groups.as_dict())
        else:
            print_groups(groups, screen, everything=args.all)
        return exit_codes.DONE

    return with_hall(work, screen, readonly=True)


def print_groups(groups: Groups, screen: Screen, *, everything: bool) -> None:
    """The groups as people read them."""
    now = SystemClock().now()
    asks = [
        [ask.id, ask.kind.replace("_", " "), one_line(ask.question.title, 70), f"guild answer {ask.id}"]
        for ask in groups.asks
    ]
    stopped = [[run.id, run.status, _task(run), f"guild resume {run.id}"] for run in groups.stopped]
    done = groups.done if everything else groups.done[:_SHOWN]
    parts = {
        "needs you": asks + stopped,
        "working": [[run.id, run.worker, _task(run), age(run.created_at, now)] for run in groups.working],
        "done": [
            [run.id, run.status, run.worker, _task(run), age(run.created_at, now), money(run.usage.cost_usd)]
            for run in done
        ],
    }
    for name, rows in parts.items():
        if rows:
            screen.heading(name)
            screen.table(rows, indent="  ")
    if not any(parts.values()):
        screen.note('Nothing here yet. `guild run WORKER "..."` starts something; `guild demo` shows how it goes.')
    elif len(done) < len(groups.done):
        screen.note(f"{len(groups.done) - len(done)} more are done: guild ls --all", "dim")


def _task(run: Run) -> str:
    return one_line(str(run.request.get("input") or run.worker), 50)
