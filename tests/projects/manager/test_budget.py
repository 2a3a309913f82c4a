"""What the manager commissions in a run with a budget has at most what is left of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from guildhall.projects.commissions.model import Draft
from tests.projects.commissions.harness import LATE, call, say, submit, write
from tests.projects.manager.manager_runs import ID, run_manager

if TYPE_CHECKING:
    from guildhall.projects.commissions.model import Commission
    from tests.projects.commissions.harness import CommissionProject


def _scripted(shop: CommissionProject) -> None:
    wanted = {"title": "A key", "worker": "smith", "prompt": "Forge."}
    dispatched = {"expect": rf"(?P<made>{ID}) is", **call("dispatch_commission", id="${made}")}
    manager = [call("create_commission", **wanted), dispatched, call("wait_for_commissions", ids=["${made}"]), say()]
    workers = {"manager": [manager], "smith": [[submit(), say()] for _ in range(6)]}
    (shop.repo.path / "script.yaml").write_text(json.dumps({"price": {"input": 2, "output": 2}, "workers": workers}))


@pytest.mark.parametrize("given", [None, 0.03])
def test_a_commission_has_at_most_what_is_left(harness: CommissionProject, given: float | None) -> None:
    harness.worker(limits={"max_budget_usd": 0.5})
    _scripted(harness)

    async def another(shop: CommissionProject, run: str) -> Commission:
        draft = Draft(title="One more", worker="smith", prompt="Forge. " * 2_000)
        project = shop.hall.projects.get("shop")
        made = await shop.commissions.create(project, draft, shop.frame, by="manager", made_by=f"{run}#k")
        await shop.commissions.dispatch(made.id, shop.frame)
        return await shop.wait_ended(made.id)

    async def work(shop: CommissionProject) -> None:
        run = await run_manager(shop, budget=given)
        (made,) = await shop.commissions.list_commissions()
        assert made.run is not None, made
        most = shop.hall.history.get(made.run).request.max_budget_usd
        if given is None:
            assert most is None, "as its worker's file says"
            return
        assert 0 < most < given
        last = [await another(shop, run.id) for _ in range(3)][-1]
        assert (last.status, "budget" in str(last.reason)) == ("failed", True), last
        costs = [
            (await shop.commissions.details(one.id)).cost_usd or 0 for one in await shop.commissions.list_commissions()
        ]
        assert sum(costs) > 0
        assert sum(costs) + (shop.hall.history.get(run.id).cost_usd or 0) <= given

    harness.run_in_hall(work)


def test_those_that_work_at_the_same_time_do_not_have_the_same_dollars(harness: CommissionProject) -> None:
    """Reserve the whole budget of each commission at its start. A commission without enough budget waits."""
    rules = {"Write": {"approval_required": True}}
    harness.worker("small", limits={"max_budget_usd": 0.01}, tool_rules=rules)
    workers = {"manager": [[say()]], "smith": [[LATE]], "small": [[write("src/key.py"), LATE]]}
    price, place = {"input": 2, "output": 2}, harness.repo.path / "script.yaml"
    place.write_text(json.dumps({"price": price, "workers": workers}))

    async def work(shop: CommissionProject) -> None:
        run = await run_manager(shop, budget=0.05)
        project = shop.hall.projects.get("shop")

        async def begun(worker: str) -> Commission:
            draft = Draft(title="A key", worker=worker, prompt="Forge.")
            made = await shop.commissions.create(project, draft, shop.frame, by="manager", made_by=f"{run.id}#{worker}")
            return await shop.commissions.dispatch(made.id, shop.frame)

        small, first, second = [await begun(worker) for worker in ("small", "smith", "smith")]
        assert [one.status for one in (small, first, second)] == ["in_progress", "dispatched", "dispatched"]
        (told,) = (await shop.commissions.details(second.id)).warnings
        assert told.endswith(f"reserved for {small.id}")
        assert await shop.commissions.wait_idle([second.id], 5), (
            "nothing becomes of it before the other one is answered"
        )
        await shop.commissions.cancel(small.id)
        await shop.wait_for_status(first.id, "in_progress")
        most = shop.hall.history.get(str(shop.commissions.get(first.id).run)).request.max_budget_usd
        assert 0.03 < most < 0.05, "all that is left"
        await shop.commissions.drain()
        assert shop.commissions.get(second.id).status == "dispatched"
        place.write_text(json.dumps({"price": price, "workers": {"smith": [[submit(), say()]]}}))
        await shop.commissions.cancel(first.id)
        assert (await shop.wait_ended(second.id)).status == "completed"

    harness.run_in_hall(work)
