"""`guild cost [ID|TARGET]`: prints the turns, tokens and dollars of runs, summed by worker and model.

Does not compute prices (see `guildhall.models`).

Invariant: a run without a price is never shown as a run that costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from guildhall.cli.argument_parser import resolve
from guildhall.cli.command import JSON, Context, argument, command
from guildhall.cli.format.runs import reservation_text
from guildhall.cli.screen import Screen, money
from guildhall.cli.short_ids import read_id

if TYPE_CHECKING:
    from guildhall.runs.model import Run

_LABELS = {
    "input_tokens": "tokens in",
    "cache_read_tokens": "cache read",
    "cache_write_tokens": "cache write",
    "output_tokens": "tokens out",
}
_TOKENS = tuple(_LABELS)
_CACHED = ("cache_read_tokens", "cache_write_tokens")
_COUNTED = ("runs", "turns", *_TOKENS, "unpriced_runs")
_DIGITS = 9  # after the decimal point, because sums of floats are not exact


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
    reserved, more = "", dict[str, float]()
    if ctx.args.target is None:
        runs = await client.runs.list(everything=True, called=True)
    else:
        resolved = await resolve(ctx.args.target, ctx)
        details = await client.runs.get(resolved.run_id)
        runs = resolved.select((details.run, *details.below))
        if resolved.agent is None:  # the reservations of single agents are not known
            reserved, more = reservation_text(details), {"reserved_usd": details.reserved_usd}
    lines = by_worker_and_model(run for run in runs if run.kind != "workflow")  # a workflow itself calls no model
    ctx.print(lines, _print, data={"lines": lines, "total_usd": _total(lines), **more})
    if reserved and not ctx.as_json:
        ctx.screen.result(f"reserved {reserved}")


def by_worker_and_model(runs: Iterable[Run]) -> list[dict[str, Any]]:
    """Return the sums, most expensive first. `unpriced_runs` is the number of runs without a price."""
    sums: dict[tuple[str, str], dict[str, Any]] = {}
    for run in runs:
        new = {"worker": run.worker, "model": run.model, **dict.fromkeys(_COUNTED, 0), "cost_usd": 0.0}
        line = sums.setdefault((run.worker, run.model), new)
        line["runs"] += 1
        for name in ("turns", *_TOKENS):
            line[name] += getattr(run.usage, name)
        line["cost_usd"] += run.usage.cost_usd or 0.0
        line["unpriced_runs"] += run.usage.cost_usd is None
    for line in sums.values():
        line["cost_usd"] = None if line["unpriced_runs"] == line["runs"] else round(line["cost_usd"], _DIGITS)
    return sorted(sums.values(), key=lambda line: (-(line["cost_usd"] or 0.0), line["worker"], line["model"]))


def _total(lines: list[dict[str, Any]]) -> float | None:
    """Return the sum, or None if there are runs and none has a price."""
    costs = [line["cost_usd"] for line in lines if line["cost_usd"] is not None]
    return round(sum(costs), _DIGITS) if costs or not lines else None


def _print(lines: list[dict[str, Any]], screen: Screen) -> None:
    if not lines:
        screen.note("No runs yet.")
        return
    names = [name for name in _COUNTED[:-1] if name not in _CACHED or any(line[name] for line in lines)]
    rows = [["worker", "model", *(_LABELS.get(name, name) for name in names), "cost"]]
    for line in lines:
        numbers = [f"{line[name]:,}" for name in names]
        unpriced = line["unpriced_runs"]
        more = f" and {unpriced} without a price" if unpriced and line["cost_usd"] is not None else ""
        cost = money(line["cost_usd"]) + more
        rows.append([line["worker"], line["model"], *numbers, cost])
    screen.table(rows)
    screen.result(f"total {money(_total(lines))}")
