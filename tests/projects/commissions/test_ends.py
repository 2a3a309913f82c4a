"""The ends of a commission, told apart; and what becomes of the work."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from guildhall.core.errors import Conflict, NotDeletable, NotFound, UsageError
from guildhall.projects.commissions.recover import recover
from guildhall.runs.model import Answer
from tests.projects.commissions.workshop import LATE, call, say, submit, write

if TYPE_CHECKING:
    from tests.projects.commissions.workshop import Workshop


@pytest.mark.req("COM-14")
def test_a_run_that_breaks_has_failed_and_its_work_is_kept(workshop: Workshop) -> None:
    workshop.script([write("src/key.py", "half\n")])

    async def work(shop: Workshop) -> None:
        done = await shop.done(max_turns=1)
        assert done.status == "failed"
        assert shop.repo.at(str(done.branch), "src/key.py") == "half"

    workshop.inside(work)


@pytest.mark.req("COM-30", "WKR-20")
def test_redispatch_begins_anew_and_the_old_branch_remains(workshop: Workshop) -> None:
    workshop.script([write("src/key.py", "half\n"), say("No.")])

    async def work(shop: Workshop) -> None:
        first = await shop.done()
        assert first.status == "failed"
        shop.script([write("src/lock.py", "lock\n"), submit("Forged."), say()])
        again = await shop.commissions.redispatch(first.id, shop.frame)
        assert again.attempt == 2
        second = await shop.quiet(first.id)
        assert second.status == "completed"
        assert second.run != first.run
        assert second.branch != first.branch
        assert shop.repo.at(str(first.branch), "src/key.py") == "half"
        assert shop.repo.git("ls-tree", "claude/main", "src/key.py") == ""
        assert shop.repo.at("claude/main", "src/lock.py") == "lock"
        after = [one.after for one in (await shop.commissions.shown(first.id)).timeline if one.after]
        once = ["pending", "dispatched", "in_progress"]
        assert after == [*once, "failed", *once, "completed"]
        # nothing of the old conversation
        messages = (await shop.client.show(str(second.run))).messages
        assert "No." not in str(messages)

    workshop.inside(work)


@pytest.mark.req("COM-6", "WKR-27")
def test_cancel_while_it_works_keeps_what_was_done(workshop: Workshop) -> None:
    workshop.script([write("src/key.py", "half\n"), LATE])

    async def work(shop: Workshop) -> None:
        made = await shop.new()
        await shop.commissions.dispatch(made.id, shop.frame)
        path = shop.hall.worktrees.path(shop.hall.projects.get("shop"), f"{made.id}-1")
        await shop.so((path / "src/key.py").exists)
        done = await shop.commissions.cancel(made.id, "not now")
        assert (done.status, done.reason) == ("cancelled", "not now")
        assert shop.hall.history.get(str(done.run)).status == "cancelled"
        assert shop.repo.at(str(done.branch), "src/key.py") == "half"
        assert not path.exists()
        with pytest.raises(Conflict, match="cannot become cancelled"):
            await shop.commissions.cancel(made.id)
        with pytest.raises(Conflict, match="its run is over"):
            await shop.commissions.again(str(done.run), shop.frame)
        gone = await shop.commissions.abandon(made.id, "never")
        assert gone.status == "abandoned"
        assert "status: abandoned" in shop.repo.at("claude/main", made.path)

    workshop.inside(work)


def test_cancel_before_it_begins(workshop: Workshop) -> None:
    async def work(shop: Workshop) -> None:
        made = await shop.new()
        assert (await shop.commissions.cancel(made.id)).status == "cancelled"
        with pytest.raises(UsageError, match="reason"):
            await shop.commissions.abandon(made.id, " ")
        with pytest.raises(NotFound):
            await shop.commissions.cancel("c-2222222222")

    workshop.inside(work)


@pytest.mark.req("WKR-27")
def test_editing_one_that_works_is_cancel_and_redispatch(workshop: Workshop) -> None:
    workshop.script([LATE])

    async def work(shop: Workshop) -> None:
        made = await shop.new()
        first = await shop.commissions.dispatch(made.id, shop.frame)
        assert first.status == "in_progress"
        shop.script([write("src/key.py", "gold\n"), submit("Gold."), say()])
        edited = await shop.commissions.edit(made.id, {"prompt": "Of gold."}, shop.frame)
        assert edited.attempt == 2
        done = await shop.quiet(made.id)
        assert done.status == "completed"
        assert shop.hall.history.get(str(first.run)).status == "cancelled"
        assert "Of gold." in shop.hall.history.get(str(done.run)).request["input"]
        after = [one.after for one in (await shop.commissions.shown(made.id)).timeline if one.after]
        once = ["pending", "dispatched", "in_progress"]
        assert after == [*once, "cancelled", *once, "completed"]
        with pytest.raises(Conflict, match="it is over"):
            await shop.commissions.edit(made.id, {"prompt": "Silver."}, shop.frame)

    workshop.inside(work)


def test_two_who_edit_one_that_works_do_so_one_after_another(workshop: Workshop) -> None:
    workshop.script([LATE])

    async def work(shop: Workshop) -> None:
        made = await shop.new()
        await shop.commissions.dispatch(made.id, shop.frame)
        shop.script([submit("Gold."), say()])
        changes: list[dict[str, str]] = [{"prompt": "Of gold."}, {"title": "A gold key"}]
        await asyncio.gather(*(shop.commissions.edit(made.id, one, shop.frame) for one in changes))
        done = await shop.quiet(made.id)
        assert (done.status, done.draft.prompt, done.title) == ("completed", "Of gold.", "A gold key")
        assert (await shop.commissions.shown(made.id)).worktree is None
        assert shop.hall.worktrees.activities("shop") == []

    workshop.inside(work)


def test_edited_so_that_it_cannot_begin_it_is_blocked(workshop: Workshop) -> None:
    workshop.script([LATE])

    async def work(shop: Workshop) -> None:
        made = await shop.new()
        await shop.commissions.dispatch(made.id, shop.frame)
        edited = await shop.commissions.edit(made.id, {"dependencies": [".lore/design.md"]}, shop.frame)
        assert (edited.status, edited.reason) == ("blocked", "waits for .lore/design.md")
        assert "status: blocked" in shop.repo.at("claude/main", made.path)

    workshop.inside(work)


@pytest.mark.req("COM-31")
def test_a_conflict_keeps_the_branch_and_asks(workshop: Workshop) -> None:
    workshop.script([write("src/cart.py", "total = 2\n"), submit("Counted."), say()], [submit("Nothing to do."), say()])

    async def work(shop: Workshop) -> None:
        made = await shop.new()
        # Somebody else changes the same place while the worker is at it.
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
        shop.hall.branches(shop.hall.projects.get("shop")).write({"src/cart.py": b"total = 3\n"}, "Three", "Ada")
        tip = shop.repo.git("rev-parse", "claude/main")
        failed = await shop.quiet(made.id)
        assert failed.status == "failed"
        assert "src/cart.py" in str(failed.reason)
        assert failed.result == "Counted."
        assert shop.repo.at("claude/main", "src/cart.py") == "total = 3"
        assert shop.repo.git("merge-base", "claude/main", tip) == tip
        assert shop.repo.at(str(failed.branch), "src/cart.py") == "total = 2"
        assert (await shop.commissions.shown(made.id)).worktree is not None
        asks = {one.kind: one for one in shop.hall.asks.open()}
        assert set(asks) == {"question", "conflict", "meeting"}
        assert all("src/cart.py" in asks[kind].question.body for kind in ("conflict", "meeting"))
        (meeting,) = await shop.client.meetings(project="shop", status="requested")
        assert (meeting.worker, meeting.by, meeting.ask) == ("smith", "hall", asks["meeting"].id)
        ask = asks["conflict"]
        shop.repo.git("switch", "-q", "claude/main")
        with pytest.raises(Conflict, match="claude/main is checked out"):
            await shop.client.answer(ask.id, Answer(choice="redispatch", by="person"))
        assert shop.hall.asks.get(ask.id).status == "open", "what could not be done can be said again"
        shop.repo.git("switch", "-q", "main")
        await shop.client.answer(ask.id, Answer(choice="redispatch", by="person"))
        done = await shop.quiet(made.id)
        assert done.status == "completed", done.reason
        assert shop.hall.asks.get(ask.id).status == "applied"
        assert shop.repo.at(str(failed.branch), "src/cart.py") == "total = 2"
        # It is settled: nobody is asked about it, or by it, any more, and its checkout is gone.
        assert {one.run for one in shop.hall.asks.open()} <= {done.run}
        assert shop.hall.asks.get(asks["question"].id).status == "withdrawn"
        over = shop.hall.meetings.register.get(meeting.id)
        assert (over.status, over.reason) == ("declined", "what it was about is settled")
        assert shop.hall.asks.get(asks["meeting"].id).status == "withdrawn"
        assert shop.hall.worktrees.activities("shop") == []
        # As if the hall had died before it was taken away.
        shop.hall.worktrees.make(shop.hall.projects.get("shop"), f"{made.id}-1", str(failed.branch), "full")

    workshop.inside(work)

    async def recovered(shop: Workshop) -> None:
        await shop.commissions.settled()
        assert shop.hall.living("shop") == ()
        await shop.client.project_remove("shop")

    workshop.inside(recovered, recover=True)
    workshop.repo.fsck()


def test_a_conflict_in_the_artifacts_is_none(workshop: Workshop) -> None:
    workshop.script([{"sleep": 0.2, **write(".lore/plan.md", "The worker's plan\n")}, submit("Planned."), say()])

    async def work(shop: Workshop) -> None:
        made = await shop.new()
        await shop.commissions.dispatch(made.id, shop.frame)
        shop.hall.branches(shop.hall.projects.get("shop")).write({".lore/plan.md": b"Another\n"}, "Another", "Ada")
        done = await shop.quiet(made.id)
        assert done.status == "completed", done.reason
        assert shop.repo.at("claude/main", ".lore/plan.md") == "The worker's plan"

    workshop.inside(work)


def test_what_is_taken_off_the_record_stays_off_it(workshop: Workshop) -> None:
    workshop.script([submit("First."), say()], [submit("Second."), say()])

    async def work(shop: Workshop) -> str:
        made = await shop.new()
        with pytest.raises(NotDeletable, match="pending") as caught:
            await shop.commissions.delete(made.id)
        assert caught.value.hint == f"guild commission abandon {made.id} first."
        await shop.commissions.dispatch(made.id, shop.frame)
        await shop.quiet(made.id)
        after = await shop.new(dependencies=(made.path,))
        with pytest.raises(NotDeletable, match=f"{after.id} depend on it"):
            await shop.commissions.delete(made.id)
        await shop.commissions.abandon(after.id)
        await shop.commissions.delete(made.id)
        with pytest.raises(NotFound):
            await shop.commissions.delete(made.id)
        return made.id

    async def begun(shop: Workshop) -> list[str]:
        await shop.commissions.settled()
        return [one.id for one in await shop.commissions.all()]

    id = workshop.inside(work)
    assert id not in workshop.inside(begun, recover=True)
    assert "First." in workshop.repo.at("claude/main", f".lore/commissions/{id}.md")


def test_an_answer_after_the_end_is_in_the_artifact(workshop: Workshop) -> None:
    workshop.script([call("log_question", question="Which lock?"), submit(), say()])

    async def work(shop: Workshop) -> None:
        done = await shop.done()
        assert "Which lock?\n  - not answered" in shop.repo.at("claude/main", done.path)
        (ask,) = shop.hall.asks.of_run(str(done.run))
        await shop.client.answer(ask.id, Answer(choice="The old one"))
        text = shop.repo.at("claude/main", done.path)
        assert "Which lock?\n  - The old one" in text
        assert "status: completed" in text

    workshop.inside(work)


@pytest.mark.req("COM-14")
@pytest.mark.parametrize("cancelled", [False, True])
def test_what_is_done_waits_while_the_branch_cannot_be_moved(workshop: Workshop, cancelled: bool) -> None:
    slow = {"sleep": 0.3, **write("src/key.py", "key = 1\n")}
    workshop.script([call("report_progress", summary="At it."), slow, submit("Forged."), say()])

    async def work(shop: Workshop) -> None:
        made = await shop.new()
        await shop.commissions.dispatch(made.id, shop.frame)
        shop.repo.git("switch", "-q", "claude/main")
        run = str(shop.commissions.get(made.id).run)
        await shop.so(lambda: shop.hall.history.get(run).status == "parked")
        assert shop.commissions.get(made.id).status == "in_progress"
        assert "cannot be merged now: claude/main is checked out" in (await shop.reasons(made.id))[-1]
        with pytest.raises(Conflict, match="claude/main is checked out"):
            await shop.commissions.dispatch((await shop.new(title="Another")).id, shop.frame)
        if cancelled:
            ended = await shop.commissions.cancel(made.id)
            assert ended.status == "cancelled"
            assert shop.repo.at(str(ended.branch), "src/key.py") == "key = 1"
            return
        await recover(shop.commissions._ground)
        assert shop.commissions.get(made.id).status == "in_progress", "it waits for a person"
        shop.repo.git("switch", "-q", "main")
        _ = [event async for event in shop.client.resume(run, shop.frame)]
        done = await shop.quiet(made.id)
        assert (done.status, done.result, done.attempt) == ("completed", "Forged.", 1), done.reason
        assert shop.repo.at("claude/main", "src/key.py") == "key = 1"

    workshop.inside(work)
    workshop.repo.fsck()


def test_what_was_said_about_a_conflict_is_done_after_a_crash_too(workshop: Workshop) -> None:
    slow = {"sleep": 0.2, **write("src/cart.py", "total = 2\n")}
    workshop.script([slow, submit("Counted."), say()])

    async def work(shop: Workshop) -> str:
        made = await shop.new()
        await shop.commissions.dispatch(made.id, shop.frame)
        shop.hall.branches(shop.hall.projects.get("shop")).write({"src/cart.py": b"total = 3\n"}, "Three", "Ada")
        await shop.quiet(made.id)
        (ask,) = [one for one in shop.hall.asks.open() if one.kind == "conflict"]
        await shop.hall.asks.answer(ask.id, Answer(choice="abandon", note="Three it is."))  # and the hall dies
        return made.id

    async def later(shop: Workshop) -> None:
        await shop.commissions.settled()
        found = shop.commissions.get(id)
        assert (found.status, found.reason) == ("abandoned", "Three it is.")

    id = workshop.inside(work)
    workshop.inside(later, recover=True)
