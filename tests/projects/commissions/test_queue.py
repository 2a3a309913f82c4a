"""The queue: slots, dispatching, and runs that wait for the user."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from guildhall.core.errors import Conflict, NotFound
from guildhall.projects.commissions import records
from guildhall.projects.commissions.model import Commission, Draft
from guildhall.runs.model import Answer
from tests.projects.commissions.harness import LATE, CommissionProject, call, say, submit, write


async def begun(shop: CommissionProject, **draft: object) -> Commission:
    """Return a running commission whose worker has written a file."""
    made = await shop.create_commission(**draft)
    await shop.commissions.dispatch(made.id, shop.frame)
    path = shop.services.worktrees.path(shop.hall.projects.get("shop"), f"{made.id}-1")
    await shop.wait_until((path / "src/key.py").exists)
    return shop.commissions.get(made.id)


@pytest.mark.req("COM-21")
def test_at_most_ten_run_at_a_time_by_default(harness: CommissionProject) -> None:
    entry = {"path": str(harness.repo.path), "branch": "main", "max_commissions": 100}
    harness.home.settings.write_text(json.dumps({"projects": {"shop": entry}}))
    harness.script([LATE])

    async def work(shop: CommissionProject) -> None:
        now = "2026-11-16T12:00:00.000Z"

        def others(connection: Any) -> None:  # of other projects; what they do is nothing to this one
            for number in range(9):
                draft = Draft(title=str(number), worker="smith", prompt="Forge.")
                id, other = f"c-000000000{number}", f"other{number % 3}"
                row: dict[str, Any] = {"created_at": now, "changed_at": now}
                one = Commission(id=id, project=other, draft=draft, status="in_progress", **row)
                records.add(connection, one, "create", "at work")

        await shop.hall.store.write(others)
        tenth, eleventh = await shop.create_commission(), await shop.create_commission()
        assert (await shop.commissions.dispatch(tenth.id, shop.frame)).status == "in_progress"
        assert (await shop.commissions.dispatch(eleventh.id, shop.frame)).status == "dispatched"
        [why] = (await shop.commissions.details(eleventh.id)).warnings
        assert ("no free slot" in why, tenth.id in why) == (True, True)
        await shop.commissions.cancel(tenth.id)
        await shop.wait_for_status(eleventh.id, "in_progress")
        await shop.commissions.cancel(eleventh.id)

    harness.run_in_hall(work)


def test_an_answer_is_appended_to_the_next_tool_result(harness: CommissionProject) -> None:
    harness.script(
        [
            call("log_question", question="Which lock?"),
            {"sleep": 0.2, **call("report_progress", summary="On.")},
            submit("x"),
            say(),
        ]
    )

    async def work(shop: CommissionProject) -> None:
        made = await shop.create_commission()
        begun = await shop.commissions.dispatch(made.id, shop.frame)
        await shop.wait_until(shop.hall.asks.list_open)
        (ask,) = shop.hall.asks.list_open()
        assert made.id in ask.question.title
        await shop.client.asks.answer(ask.id, Answer(choice="The front door."))
        done = await shop.wait_ended(made.id)
        assert done.status == "completed"
        assert "The front door." in str((await shop.client.runs.get(str(begun.run))).messages)
        assert "The front door." in shop.repo.at("guildhall/records", made.path)

    harness.run_in_hall(work)


def test_two_concurrent_dispatches_start_one_attempt(harness: CommissionProject) -> None:
    harness.script([submit("x"), say()])

    async def work(shop: CommissionProject) -> None:
        made = await shop.create_commission()
        both: list[Any] = await asyncio.gather(
            *(shop.commissions.dispatch(made.id, shop.frame) for _ in range(2)), return_exceptions=True
        )
        assert sorted(isinstance(one, Conflict) for one in both) == [False, True]
        await shop.wait_ended(made.id)
        assert shop.commissions.get(made.id).attempt == 1

    harness.run_in_hall(work)


def test_dispatch_with_an_unknown_worker_changes_nothing(harness: CommissionProject) -> None:
    async def work(shop: CommissionProject) -> None:
        made = await shop.create_commission()
        (shop.repo.path / "workers" / "smith.yaml").unlink()
        with pytest.raises(NotFound, match="smith"):
            await shop.commissions.dispatch(made.id, shop.frame)
        assert shop.commissions.get(made.id).status == "pending"
        draft = Draft(title="x", worker="nobody", prompt="x")
        with pytest.raises(NotFound, match="nobody"):
            await shop.commissions.create(shop.hall.projects.get("shop"), draft, shop.frame)

    harness.run_in_hall(work)


def test_an_approval_resumes_the_run(harness: CommissionProject) -> None:
    harness.worker(tool_rules={"Write": {"approval_required": True}})
    harness.script([write("src/key.py", "key = 1\n"), submit("Forged."), say()])

    async def work(shop: CommissionProject) -> None:
        made = await shop.create_commission(artifacts=("src/key.py",))
        begun = await shop.commissions.dispatch(made.id, shop.frame)
        await shop.wait_until(lambda: shop.hall.history.get(str(begun.run)).status == "waiting")
        (ask,) = shop.hall.asks.list_open()
        shown = await shop.commissions.details(made.id)
        assert (shown.commission.status, shown.waiting) == ("in_progress", [ask.id])
        await shop.client.asks.answer(ask.id, Answer(choice="yes"))
        done = await shop.wait_ended(made.id)
        assert done.status == "completed", done.reason

    harness.run_in_hall(work)


@pytest.mark.req("COM-21")
def test_a_commission_that_waits_for_the_user_frees_its_slot(harness: CommissionProject) -> None:
    harness.worker(tool_rules={"Write": {"approval_required": True}})
    harness.worker("carver")
    harness.script([write("src/key.py"), submit(), say()], carver=[[LATE]])
    settings = harness.home.settings
    entry = {"path": str(harness.repo.path), "branch": "main", "max_commissions": 1}
    settings.write_text(json.dumps({"projects": {"shop": entry}}))

    async def work(shop: CommissionProject) -> None:
        first = await shop.create_commission()
        second, third = [await shop.create_commission(worker="carver") for _ in range(2)]
        for one in (first, second, third):
            await shop.commissions.dispatch(one.id, shop.frame)
        await shop.wait_for_status(second.id, "in_progress")
        assert shop.hall.history.get(str(shop.commissions.get(first.id).run)).needs_user
        (told,) = (await shop.commissions.details(third.id)).warnings
        assert told == f"queued: shop has no free slot (running: {second.id})"
        # It continues as soon as possible, and counts again.
        (ask,) = shop.hall.asks.list_open()
        await shop.client.asks.answer(ask.id, Answer(choice="yes"))
        assert (await shop.wait_ended(first.id)).status == "completed"
        assert shop.commissions.get(third.id).status == "dispatched"
        await shop.commissions.cancel(second.id)
        await shop.wait_for_status(third.id, "in_progress")

    harness.run_in_hall(work)
