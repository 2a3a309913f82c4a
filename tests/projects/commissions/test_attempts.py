"""Attempts: failure, cancel, edit, redispatch, delete, and what happens to the work."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from guildhall.core.errors import Conflict, NotDeletable, NotFound, UsageError
from guildhall.projects.commissions.attempts import open_attempt
from tests.projects.commissions.harness import LATE, CommissionProject, say, submit, write

if TYPE_CHECKING:
    from guildhall.projects.commissions.model import Commission


async def begun(shop: CommissionProject, **draft: object) -> Commission:
    """Return a running commission whose worker has written a file."""
    made = await shop.create_commission(**draft)
    await shop.commissions.dispatch(made.id, shop.frame)
    path = shop.services.worktrees.path(shop.hall.projects.get("shop"), f"{made.id}-1")
    await shop.wait_until((path / "src/key.py").exists)
    return shop.commissions.get(made.id)


def test_cancel_while_an_approval_is_open(harness: CommissionProject) -> None:
    harness.worker(tool_rules={"Write": {"approval_required": True}})
    harness.script([write("src/key.py", "key = 1\n"), submit("Forged."), say()])

    async def work(shop: CommissionProject) -> None:
        begun = await shop.commissions.dispatch((await shop.create_commission()).id, shop.frame)
        await shop.wait_until(lambda: shop.hall.history.get(str(begun.run)).status == "waiting")
        (ask,) = shop.hall.asks.list_open()
        assert (await shop.commissions.cancel(begun.id)).status == "cancelled"
        assert shop.hall.asks.get(ask.id).status == "withdrawn"

    harness.run_in_hall(work)


def test_cancel_after_the_result_completes_it(harness: CommissionProject) -> None:
    harness.script([write("src/key.py", "key = 1\n"), submit("Forged."), LATE])

    async def work(shop: CommissionProject) -> None:
        begun = await shop.commissions.dispatch((await shop.create_commission()).id, shop.frame)
        await shop.wait_until(lambda: shop.commissions.get(begun.id).result == "Forged.")
        await shop.wait_until(
            lambda: any(
                e.kind == "tool_ended" and "submitted" in str(e.data) for e in shop.hall.history.entries(str(begun.run))
            )
        )
        done = await shop.commissions.cancel(begun.id)
        assert (done.status, done.result) == ("completed", "Forged.")
        assert shop.repo.at("claude/main", "src/key.py") == "key = 1"
        assert shop.hall.history.get(str(begun.run)).status == "completed"

    harness.run_in_hall(work)


@pytest.mark.parametrize("model", [None, "openai:gpt-4o"])
def test_a_commission_without_a_usable_model_names_the_command_once(
    harness: CommissionProject, model: str | None
) -> None:
    async def work(shop: CommissionProject) -> None:
        made = await shop.create_commission()
        shop.worker(**({"model": model} if model else {"model": None}))
        now = shop.commissions.context.now()
        await shop.hall.store.write(lambda connection: open_attempt(connection, made.id, now))
        await shop.commissions._queue.run()
        failed = await shop.wait_ended(made.id)
        assert failed.status == "failed"
        assert str(failed.reason).count(f"guild edit {made.id}") == 1, failed.reason

    harness.run_in_hall(work)


@pytest.mark.req("COM-14")
def test_a_failed_run_keeps_its_work(harness: CommissionProject) -> None:
    harness.script([write("src/key.py", "half\n")])

    async def work(shop: CommissionProject) -> None:
        done = await shop.run_commission(max_turns=1)
        assert done.status == "failed"
        assert shop.repo.at(str(done.branch), "src/key.py") == "half"

    harness.run_in_hall(work)


@pytest.mark.req("COM-30", "WKR-20")
def test_redispatch_starts_from_scratch_and_keeps_the_old_branch(harness: CommissionProject) -> None:
    harness.script([write("src/key.py", "half\n"), say("No.")])

    async def work(shop: CommissionProject) -> None:
        first = await shop.run_commission()
        assert first.status == "failed"
        shop.script([write("src/lock.py", "lock\n"), submit("Forged."), say()])
        again = await shop.commissions.redispatch(first.id, shop.frame)
        assert again.attempt == 2
        second = await shop.wait_ended(first.id)
        assert second.status == "completed"
        assert second.run != first.run
        assert second.branch != first.branch
        assert shop.repo.at(str(first.branch), "src/key.py") == "half"
        assert shop.repo.git("ls-tree", "claude/main", "src/key.py") == ""
        assert shop.repo.at("claude/main", "src/lock.py") == "lock"
        after = [one.after for one in (await shop.commissions.details(first.id)).timeline if one.after]
        once = ["pending", "dispatched", "in_progress"]
        assert after == [*once, "failed", *once, "completed"]
        # nothing of the old conversation
        messages = (await shop.client.runs.get(str(second.run))).messages
        assert "No." not in str(messages)

    harness.run_in_hall(work)


@pytest.mark.req("COM-6", "WKR-27")
def test_cancel_keeps_the_work_on_its_branch(harness: CommissionProject) -> None:
    harness.script([write("src/key.py", "half\n"), LATE])

    async def work(shop: CommissionProject) -> None:
        made = await shop.create_commission()
        await shop.commissions.dispatch(made.id, shop.frame)
        path = shop.services.worktrees.path(shop.hall.projects.get("shop"), f"{made.id}-1")
        await shop.wait_until((path / "src/key.py").exists)
        done = await shop.commissions.cancel(made.id, "not now")
        assert (done.status, done.reason) == ("cancelled", "not now")
        assert shop.hall.history.get(str(done.run)).status == "cancelled"
        assert shop.repo.at(str(done.branch), "src/key.py") == "half"
        assert not path.exists()
        with pytest.raises(Conflict, match="cannot cancel commission"):
            await shop.commissions.cancel(made.id)
        with pytest.raises(Conflict, match="cannot resume commission"):
            await shop.commissions.prepare_resume(str(done.run), shop.frame)
        gone = await shop.commissions.abandon(made.id, "never")
        assert gone.status == "abandoned"
        assert "status: abandoned" in shop.repo.at("guildhall/records", made.path)

    harness.run_in_hall(work)


def test_cancel_before_it_is_dispatched(harness: CommissionProject) -> None:
    async def work(shop: CommissionProject) -> None:
        made = await shop.create_commission()
        assert (await shop.commissions.cancel(made.id)).status == "cancelled"
        with pytest.raises(UsageError, match="reason"):
            await shop.commissions.abandon(made.id, " ")
        with pytest.raises(NotFound):
            await shop.commissions.cancel("c-2222222222")

    harness.run_in_hall(work)


def test_cancel_after_redispatch_was_blocked(harness: CommissionProject) -> None:
    harness.script([say("No.")])

    async def work(shop: CommissionProject) -> None:
        failed = await shop.run_commission()
        await shop.commissions.edit(failed.id, {"dependencies": [".lore/design.md"]}, shop.frame)
        blocked = await shop.commissions.redispatch(failed.id, shop.frame)
        assert (blocked.status, blocked.run) == ("blocked", failed.run), "it still has the run of the last attempt"
        assert (await shop.commissions.cancel(failed.id)).status == "cancelled"

    harness.run_in_hall(work)


@pytest.mark.req("WKR-27")
def test_editing_an_active_commission_restarts_it(harness: CommissionProject) -> None:
    harness.script([LATE])

    async def work(shop: CommissionProject) -> None:
        made = await shop.create_commission()
        first = await shop.commissions.dispatch(made.id, shop.frame)
        assert first.status == "in_progress"
        shop.script([write("src/key.py", "gold\n"), submit("Gold."), say()])
        edited = await shop.commissions.edit(made.id, {"prompt": "Of gold."}, shop.frame)
        assert edited.attempt == 2
        done = await shop.wait_ended(made.id)
        assert done.status == "completed"
        assert shop.hall.history.get(str(first.run)).status == "cancelled"
        assert "Of gold." in shop.hall.history.get(str(done.run)).request.input
        after = [one.after for one in (await shop.commissions.details(made.id)).timeline if one.after]
        once = ["pending", "dispatched", "in_progress"]
        assert after == [*once, "cancelled", *once, "completed"]
        with pytest.raises(Conflict, match="cannot edit commission"):
            await shop.commissions.edit(made.id, {"prompt": "Silver."}, shop.frame)

    harness.run_in_hall(work)


def test_concurrent_edits_are_serialised(harness: CommissionProject) -> None:
    harness.script([LATE])

    async def work(shop: CommissionProject) -> None:
        made = await shop.create_commission()
        await shop.commissions.dispatch(made.id, shop.frame)
        shop.script([submit("Gold."), say()])
        changes: list[dict[str, str]] = [{"prompt": "Of gold."}, {"title": "A gold key"}]
        await asyncio.gather(*(shop.commissions.edit(made.id, one, shop.frame) for one in changes))
        done = await shop.wait_ended(made.id)
        assert (done.status, done.draft.prompt, done.title) == ("completed", "Of gold.", "A gold key")
        assert (await shop.commissions.details(made.id)).worktree is None
        assert shop.services.worktrees.list_activities("shop") == []

    harness.run_in_hall(work)


def test_an_edit_may_block_it(harness: CommissionProject) -> None:
    harness.script([LATE])

    async def work(shop: CommissionProject) -> None:
        made = await shop.create_commission()
        await shop.commissions.dispatch(made.id, shop.frame)
        edited = await shop.commissions.edit(made.id, {"dependencies": [".lore/design.md"]}, shop.frame)
        assert (edited.status, edited.reason) == ("blocked", "waiting for .lore/design.md")
        assert "status: blocked" in shop.repo.at("guildhall/records", made.path)

    harness.run_in_hall(work)


def test_a_deleted_commission_is_not_rebuilt(harness: CommissionProject) -> None:
    harness.script([submit("First."), say()], [submit("Second."), say()])

    async def work(shop: CommissionProject) -> str:
        made = await shop.create_commission()
        with pytest.raises(NotDeletable, match="pending") as caught:
            await shop.commissions.delete(made.id)
        assert caught.value.hint == f"Cancel it first: guild stop {made.id} --abandon"
        await shop.commissions.dispatch(made.id, shop.frame)
        await shop.wait_ended(made.id)
        after = await shop.create_commission(dependencies=(made.path,))
        with pytest.raises(NotDeletable, match=f"depend on it: {after.id}"):
            await shop.commissions.delete(made.id)
        await shop.commissions.abandon(after.id)
        await shop.commissions.delete(made.id)
        with pytest.raises(NotFound):
            await shop.commissions.delete(made.id)
        return made.id

    async def begun(shop: CommissionProject) -> list[str]:
        await shop.commissions.drain()
        return [one.id for one in await shop.commissions.list_commissions()]

    id = harness.run_in_hall(work)
    assert id not in harness.run_in_hall(begun, recover=True)
    assert "First." in harness.repo.at("guildhall/records", f".lore/commissions/{id}.md")
