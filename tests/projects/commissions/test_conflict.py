"""Merge conflicts and late answers."""

from __future__ import annotations

import pytest

from guildhall.core.errors import Conflict
from guildhall.runs.model import Answer
from tests.projects.commissions.harness import CommissionProject, call, say, submit, write


@pytest.mark.req("COM-31")
def test_a_conflict_keeps_the_branch_and_asks_the_user(harness: CommissionProject) -> None:
    harness.script([write("src/cart.py", "total = 2\n"), submit("Counted."), say()], [submit("Nothing to do."), say()])

    async def work(shop: CommissionProject) -> None:
        made = await shop.create_commission()
        # The user changes the same lines while the worker is running.
        shop.script(
            [
                call("log_question", question="Two?"),
                {"sleep": 0.2, **write("src/cart.py", "total = 2\n")},
                submit("Counted."),
                say(),
            ],
            [submit("Nothing to do."), say()],
        )
        await shop.commissions.dispatch(made.id, shop.frame)
        shop.services.branches(shop.hall.projects.get("shop")).write({"src/cart.py": b"total = 3\n"}, "Three", "Ada")
        tip = shop.repo.git("rev-parse", "claude/main")
        failed = await shop.wait_ended(made.id)
        assert failed.status == "failed"
        assert "src/cart.py" in str(failed.reason)
        assert failed.result == "Counted."
        assert shop.repo.at("claude/main", "src/cart.py") == "total = 3"
        assert shop.repo.git("merge-base", "claude/main", tip) == tip
        assert shop.repo.at(str(failed.branch), "src/cart.py") == "total = 2"
        assert (await shop.commissions.details(made.id)).worktree is not None
        asks = {one.kind: one for one in shop.hall.asks.list_open()}
        assert set(asks) == {"question", "conflict", "meeting"}
        assert all("src/cart.py" in asks[kind].question.body for kind in ("conflict", "meeting"))
        (meeting,) = await shop.client.meetings.list(project="shop", status="requested")
        assert (meeting.worker, meeting.by, meeting.ask) == ("smith", "hall", asks["meeting"].id)
        ask = asks["conflict"]
        shop.repo.git("switch", "-q", "claude/main")
        with pytest.raises(Conflict, match="cannot move claude/main: it is checked out"):
            await shop.client.asks.answer(ask.id, Answer(choice="redispatch", by="person"))
        assert shop.hall.asks.get(ask.id).status == "open", "what could not be done can be said again"
        shop.repo.git("switch", "-q", "main")
        await shop.client.asks.answer(ask.id, Answer(choice="redispatch", by="person"))
        done = await shop.wait_ended(made.id)
        assert done.status == "completed", done.reason
        assert shop.hall.asks.get(ask.id).status == "applied"
        assert shop.repo.at(str(failed.branch), "src/cart.py") == "total = 2"
        # It is settled: nobody is asked about it, or by it, any more, and its checkout is gone.
        assert {one.run for one in shop.hall.asks.list_open()} <= {done.run}
        assert shop.hall.asks.get(asks["question"].id).status == "withdrawn"
        over = shop.hall.meetings.get(meeting.id)
        assert (over.status, over.reason) == ("declined", "the conflict is resolved")
        assert shop.hall.asks.get(asks["meeting"].id).status == "withdrawn"
        assert shop.services.worktrees.list_activities("shop") == []
        # As if the hall had died before it was taken away.
        shop.services.worktrees.check_out(shop.hall.projects.get("shop"), f"{made.id}-1", str(failed.branch), "full")

    harness.run_in_hall(work)

    async def recovered(shop: CommissionProject) -> None:
        await shop.commissions.drain()
        assert shop.services.unfinished_work("shop") == ()
        await shop.client.projects.remove("shop")

    harness.run_in_hall(recovered, recover=True)
    harness.repo.fsck()


def test_conflicts_in_lore_are_resolved_for_the_worker(harness: CommissionProject) -> None:
    harness.script([{"sleep": 0.2, **write(".lore/plan.md", "The worker's plan\n")}, submit("Planned."), say()])

    async def work(shop: CommissionProject) -> None:
        made = await shop.create_commission()
        await shop.commissions.dispatch(made.id, shop.frame)
        shop.services.branches(shop.hall.projects.get("shop")).write({".lore/plan.md": b"Another\n"}, "Another", "Ada")
        done = await shop.wait_ended(made.id)
        assert done.status == "completed", done.reason
        assert shop.repo.at("claude/main", ".lore/plan.md") == "The worker's plan"

    harness.run_in_hall(work)


def test_a_late_answer_is_written_into_the_artifact(harness: CommissionProject) -> None:
    harness.script([call("log_question", question="Which lock?"), submit(), say()])

    async def work(shop: CommissionProject) -> None:
        done = await shop.run_commission()
        assert "Which lock?\n  - not answered" in shop.repo.at("guildhall/records", done.path)
        (ask,) = shop.hall.asks.list_of_run(str(done.run))
        await shop.client.asks.answer(ask.id, Answer(choice="The old one"))
        text = shop.repo.at("guildhall/records", done.path)
        assert "Which lock?\n  - The old one" in text
        assert "status: completed" in text

    harness.run_in_hall(work)


def test_a_deleted_commission_has_no_open_question(harness: CommissionProject) -> None:
    harness.script([call("log_question", question="Which lock?"), submit(), say()])

    async def work(shop: CommissionProject) -> None:
        done = await shop.run_commission()
        assert [ask.kind for ask in shop.hall.asks.list_open()] == ["question"]
        await shop.commissions.delete(done.id)
        assert shop.hall.asks.list_open() == []

    harness.run_in_hall(work)


def test_an_answer_is_carried_out_after_a_crash(harness: CommissionProject) -> None:
    slow = {"sleep": 0.2, **write("src/cart.py", "total = 2\n")}
    harness.script([slow, submit("Counted."), say()])

    async def work(shop: CommissionProject) -> str:
        made = await shop.create_commission()
        await shop.commissions.dispatch(made.id, shop.frame)
        shop.services.branches(shop.hall.projects.get("shop")).write({"src/cart.py": b"total = 3\n"}, "Three", "Ada")
        await shop.wait_ended(made.id)
        (ask,) = [one for one in shop.hall.asks.list_open() if one.kind == "conflict"]
        await shop.hall.asks.answer(ask.id, Answer(choice="abandon", note="Three it is."))  # and the hall dies
        return made.id

    async def later(shop: CommissionProject) -> None:
        await shop.commissions.drain()
        found = shop.commissions.get(id)
        assert (found.status, found.reason) == ("abandoned", "Three it is.")

    id = harness.run_in_hall(work)
    harness.run_in_hall(later, recover=True)
