"""`guild cost [ID|TARGET]`: prints the turns, tokens and dollars of runs, summed by worker and model.

Runs of a model without a price are counted separately, never as 0 dollars alone. Does not compute prices (see
`guildhall.models`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from guildhall.cli.arguments import resolve
from guildhall.cli.command import JSON, Context, argument, command
from guildhall.cli.screen import Screen, money
from guildhall.cli.short_ids import read_id

if TYPE_CHECKING:
    from collections.abc import Iterable

    from guildhall.runs.model import Run

_COUNTED = ("runs", "turns", "input_tokens", "output_tokens", "unpriced_runs")
_DIGITS = 9  # of sums of floats


@command(
    argument(
        "target",
        metavar="ID|TARGET",
        type=read_id,
        nargs="?",
        help="only this run, job, commission, meeting, @workflow:tag or agent@workflow:tag",
    ),
    JSON,
    event_loop=False,
)
async def cost(ctx: Context) -> None:
    client = await ctx.connect("read")
    if ctx.args.target is None:
        runs = await client.runs.list(everything=True, called=True)
    else:
        found = await resolve(ctx.args.target, client)
        shown = await client.runs.get(found.run)
        runs = found.select((shown.run, *shown.below))
    lines = by_worker_and_model(run for run in runs if run.kind != "workflow")  # a workflow itself calls no model
    total = round(sum(line["cost_usd"] for line in lines), _DIGITS)
    ctx.print(lines, _print, data={"lines": lines, "total_usd": total})


def by_worker_and_model(runs: Iterable[Run]) -> list[dict[str, Any]]:
    """Return the sums, most expensive first. Runs of a model without a price are counted, never as 0 dollars alone."""
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
        line["cost_usd"] = round(line["cost_usd"], _DIGITS)
    return sorted(sums.values(), key=lambda line: (-line["cost_usd"], line["worker"], line["model"]))


def _print(lines: list[dict[str, Any]], screen: Screen) -> None:
    if not lines:
        screen.note("No runs yet.")
        return
    rows = [["worker", "model", "runs", "turns", "tokens in", "tokens out", "cost"]]
    for line in lines:
        numbers = [f"{line[name]:,}" for name in _COUNTED[:-1]]
        unpriced = line["unpriced_runs"]
        more = f" and {unpriced} without a price" if unpriced else ""
        cost = money(None) if unpriced == line["runs"] else money(line["cost_usd"]) + more
        rows.append([line["worker"], line["model"], *numbers, cost])
    screen.table(rows)
    screen.result(f"total {money(sum(line['cost_usd'] for line in lines))}")
