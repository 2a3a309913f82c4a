"""Runs of the manager with a scripted model."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from guildhall.runs.model import RunRequest
from guildhall.tools.model import ToolResult

if TYPE_CHECKING:
    from collections.abc import Callable

    from guildhall.runs.model import Run
    from tests.projects.commissions.harness import Answer, CommissionProject

ID = r"c-[a-z0-9]+"


def write_script(
    shop: CommissionProject, *answers: Answer, smith: list[list[Answer]] | None = None, **others: Any
) -> None:
    """Write the scripts of the manager and of the workers that it commissions. They are the same after a crash."""
    ending: list[Answer] = [] if "say" in answers[-1] else [{"say": "managed"}]
    workers = {"manager": [[*answers, *ending]], "smith": smith or [], **others}
    (shop.repo.path / "script.yaml").write_text(json.dumps({"workers": workers}))


async def run_manager(shop: CommissionProject, worker: str = "manager", **request: Any) -> Run:
    """Run the manager to its end."""
    asked = RunRequest(worker=worker, input="Go.", override_model="script:script.yaml", **request)
    run = ""
    async for event in shop.client.runs.run(asked, shop.frame):
        run = event.root
    return shop.hall.history.get(run)


def tool_results(shop: CommissionProject, run: Run) -> list[ToolResult]:
    """Return the results of its tools."""
    ends = [entry for entry in shop.hall.history.entries(run.id) if entry.kind in ("tool_ended", "tool_refused")]
    return [ToolResult.from_dict(entry.data.result) for entry in ends]


async def until(condition: Callable[[], object]) -> None:
    """Wait until a condition is true."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - what it waits for has no event
            await asyncio.sleep(0.02)


async def call_tools(shop: CommissionProject, *answers: Answer, smith: list[list[Answer]] | None = None) -> list[str]:
    """Return the results of the manager's tools. Errors start with `error:`."""
    write_script(shop, *answers, smith=smith)
    run = await run_manager(shop)
    assert run.status == "completed", run
    return [f"error: {one.text}" if one.is_error else one.text for one in tool_results(shop, run)]
