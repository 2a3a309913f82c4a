"""`guild cost [TARGET]`: prints the turns, tokens and dollars of runs, summed by worker and model.

Runs of a model without a price are counted separately, never as 0 dollars alone. Does not compute prices (see
`guildhall.models`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from guildhall.cli.arguments import resolve
from guildhall.cli.command import JSON, Context, argument, command
from guildhall.cli.screen import Screen, money

if TYPE_CHECKING:
    from collections.abc import Iterable

    from guildhall.hall.client.interface import HallClient
    from guildhall.runs.model import Run

_COUNTED = ("runs", "turns", "input_tokens", "output_tokens", "unpriced_runs")


@command(
    argument(
        "target",
        metavar="TARGET|RUN",
        nargs="?",
        help="only of this: @workflow:tag, agent@workflow:tag, or the id of a run",
    ),
    JSON,
    event_loop=False,
)
async def cost(ctx: Context) -> None:
    client = await ctx.connect("read")
    lines = by_worker_and_model(await _runs(ctx.args.target, client))
    total = _rounded(sum(line["cost_usd"] for line in lines))
    ctx.print(lines, _print, data={"lines": lines, "total_usd": total})


async def _runs(target: str | None, client: HallClient) -> list[Run]:
    """All there are, or those of what was named; a workflow itself asks no model, so it is no line of its own."""
    if target is None:
        every = await client.runs.list(everything=True, called=True)
        return [run for run in every if run.kind != "workflow"]
    found = await resolve(target, client)
    shown = await client.runs.get(found.run)
    runs = [run for run in (shown.run, *shown.below) if run.kind != "workflow"]
    if found.agent is None:
        return runs
    kept: dict[str, Run] = {}
    for run in runs:
        if (run.parent == found.run and run.worker == found.agent.name) or run.parent in kept:
            kept[run.id] = run
    return list(kept.values())


def by_worker_and_model(runs: Iterable[Run]) -> list[dict[str, Any]]:
    """The sums, most expensive first. Runs of a model without a price count as such, never as 0 dollars alone."""
    sums: dict[tuple[str, str], dict[str, Any]] = {}
    for run in runs:
        new = {"worker": run.worker, "model": run.model, **dict.fromkeys(_COUNTED, 0), "cost_usd": 0.0}
        line = sums.setdefault((run.worker, run.model), new)
        line["runs"] += 1
        line["turns"] += run.usage.turns
        line["input_tokens"] += run.usage.input_tokens
        line["output_tokens"] += run.usage.output_tokens
        line["cost_usd"] += run.usage.cost_usd or 0.0
        line["unpriced_runs"] += run.usage.cost_usd is None
    for line in sums.values():
        line["cost_usd"] = _rounded(line["cost_usd"])
    return sorted(sums.values(), key=lambda line: (-line["cost_usd"], line["worker"], line["model"]))


def _rounded(dollars: float) -> float:
    """Without the dust of adding."""
    return round(dollars, 9)


def _print(lines: list[dict[str, Any]], screen: Screen) -> None:
    if not lines:
        screen.note("No runs yet.")
        return
    rows = [["worker", "model", "runs", "turns", "tokens in", "tokens out", "cost"]]
    for line in lines:
        numbers = [f"{line[name]:,}" for name in ("runs", "turns", "input_tokens", "output_tokens")]
        rows.append([line["worker"], line["model"], *numbers, _cost(line)])
    screen.table(rows)
    screen.result(f"total {money(sum(line['cost_usd'] for line in lines))}")


def _cost(line: dict[str, Any]) -> str:
    if line["unpriced_runs"] == line["runs"]:
        return money(None)
    more = f" and {line['unpriced_runs']} without a price" if line["unpriced_runs"] else ""
    return money(line["cost_usd"]) + more
