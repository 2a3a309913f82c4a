"""Recovery: what a new hall does with the commissions, artifacts and settings that it finds."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest
from sqlalchemy import delete

from guildhall.hall.composition.recovery import MAX_CRASHES
from guildhall.projects.commissions import records
from guildhall.projects.commissions.model import Commission, Draft, artifact_path
from guildhall.projects.commissions.service import recover
from guildhall.projects.registry import Projects
from guildhall.store.tables import commissions as table
from guildhall.store.tables import timeline
from tests.projects.commissions.workshop import LATE, Workshop, say, submit, write
from tests.projects.conftest import repository


@pytest.mark.req("COM-27")
def test_an_interrupted_run_resumes_at_the_next_start(workshop: Workshop) -> None:
    async def begin(shop: Workshop) -> str:
        made = await shop.new(artifacts=("src/key.py",))
        shop.script([write("src/key.py", "key = 1\n"), {"sleep": 1, **submit("Forged.")}, say()])
        await shop.commissions.dispatch(made.id, shop.frame)
        path = shop.services.worktrees.path(shop.hall.projects.get("shop"), f"{made.id}-1")
        await shop.so((path / "src/key.py").exists)
        return made.id

    id = workshop.inside(begin)  # ends like a hall that was stopped

    async def go_on(shop: Workshop) -> None:
        first = shop.commissions.get(id)
        assert first.status == "in_progress"
        done = await shop.quiet(id)
        assert (done.status, done.result, done.run) == ("completed", "Forged.", first.run), done.reason

    workshop.inside(go_on, recover=True)


@pytest.mark.req("COM-27")
def test_no_commission_stays_active_without_a_run_or_a_hold(workshop: Workshop) -> None:
    workshop.script([write("src/key.py", "half\n"), LATE])

    async def begin(shop: Workshop) -> tuple[str, str]:
        going = await shop.new()
        await shop.commissions.dispatch(going.id, shop.frame)
        path = shop.services.worktrees.path(shop.hall.projects.get("shop"), f"{going.id}-1")
        await shop.so((path / "src/key.py").exists)
        waits = await shop.new()
        await shop.hall.store.write(
            lambda c: records.apply(
                c, waits.id, "dispatch", "x", "now", attempt=1, branch=f"claude/commission/{waits.id}-1"
            )
        )
        return going.id, waits.id

    going, waits = workshop.inside(begin)
    # The worker is gone: its run cannot go on, and waits for it; and the other one's never began.
    (workshop.repo.path / "workers" / "smith.yaml").unlink()

    async def recovered(shop: Workshop) -> None:
        one, two = await shop.until(going, "in_progress"), await shop.quiet(waits)
        assert two.status == "failed"
        assert one.hold is not None
        assert "smith" in one.hold.message
        ended = await shop.commissions.cancel(going)
        assert shop.repo.at(str(ended.branch), "src/key.py") == "half"
        assert "status: cancelled" in shop.repo.at("claude/main", one.path)

    workshop.inside(recovered, recover=True)
    workshop.repo.fsck()


async def begin_working(shop: Workshop) -> Commission:
    """Return a commission in progress whose worker has written a file and not submitted a result."""
    shop.script([write("src/key.py", "key = 1\n"), LATE])
    made = await shop.new()
    await shop.commissions.dispatch(made.id, shop.frame)
    path = shop.services.worktrees.path(shop.hall.projects.get("shop"), f"{made.id}-1")
    await shop.so((path / "src/key.py").exists)
    return shop.commissions.get(made.id)


async def submit_on_record(shop: Workshop, id: str) -> None:
    """Do the first of the two writes of `submit_result`: the row has the result, the journal does not."""
    at = shop.commissions.context.now()
    await shop.hall.store.write(lambda c: records.change(c, id, at, result="Forged.", submitted_at=at))


@pytest.mark.req("COM-27")
def test_cancel_completes_a_result_that_only_the_row_has(workshop: Workshop) -> None:
    async def work(shop: Workshop) -> None:
        one = await begin_working(shop)
        await submit_on_record(shop, one.id)
        done = await shop.commissions.cancel(one.id)
        assert (done.status, done.result) == ("completed", "Forged.")
        assert shop.repo.at("claude/main", "src/key.py") == "key = 1"

    workshop.inside(work)


@pytest.mark.req("COM-27")
@pytest.mark.parametrize("is_submitted", [True, False])
def test_a_run_that_is_given_up_ends_its_commission(workshop: Workshop, is_submitted: bool) -> None:
    async def begin(shop: Workshop) -> str:
        one = await begin_working(shop)
        if is_submitted:
            await submit_on_record(shop, one.id)
        return one.id

    id = workshop.inside(begin)
    with closing(sqlite3.connect(workshop.home.database)) as connection:
        connection.execute("UPDATE runs SET status='interrupted', crashes=?", (MAX_CRASHES,))
        connection.commit()

    async def recovered(shop: Workshop) -> None:
        ended = await shop.quiet(id)
        assert ended.status == ("completed" if is_submitted else "failed"), ended.reason
        if is_submitted:
            assert shop.repo.at("claude/main", "src/key.py") == "key = 1"
        else:
            (entry,) = [entry for entry in shop.commissions.context.timeline(id) if entry.kind == "fail"]
            assert entry.data["error"]["code"] == "runtime_failed"
            assert shop.repo.at(str(ended.branch), "src/key.py") == "key = 1", "the work stays on its branch"
        assert not (shop.home.worktrees / "shop" / f"{id}-1").exists()

    workshop.inside(recovered, recover=True)
    workshop.repo.fsck()


@pytest.mark.req("COM-2")
def test_a_lost_row_is_rebuilt_from_its_artifact(workshop: Workshop) -> None:
    async def lose(shop: Workshop) -> Commission:
        made = await shop.new(
            title="A key: für 'Ada'",
            prompt="Forge.\n---\nstatus: completed\n",
            dependencies=(".lore/plan.md",),
            artifacts=("src/key.py",),
            linked=("README.md",),
            checks=("rm -rf /",),
            max_turns=7,
        )
        await shop.hall.store.write(lambda c: [c.execute(delete(each)) for each in (table, timeline)])
        return made

    lost: Commission = workshop.inside(lose)

    async def found(shop: Workshop) -> None:
        await shop.commissions.drain()
        again = shop.commissions.get(lost.id)
        expected = {**lost.draft.as_dict(), "checks": []}  # what is executed is not taken from an artifact
        assert again.draft.as_dict() == expected
        assert (again.status, again.created_at) == ("pending", lost.created_at)

    workshop.inside(found, recover=True)


def test_invalid_artifacts_are_ignored(workshop: Workshop) -> None:
    hostile = {
        "c-2222222222": b"",
        "c-3333333333": b"---\ncommission: c-4444444444\n---\n",
        "c-5555555555": b"---\ncommission: c-5555555555\nstatus: done\ntitle: x\nworker: w\nprompt: p\n---\n",
        "c-6666666666": b"---\n&a [*a]\n---\n",
        "c-7777777777": b"\xff\xfe---",
        "c-8888888888": b"---\ncommission: c-8888888888\nstatus: pending\ntitle: x\nworker: w\nprompt: {}\n---\n",
    }

    async def work(shop: Workshop) -> None:
        branches = shop.services.branches(shop.hall.projects.get("shop"))
        branches.write({artifact_path(id): data for id, data in hostile.items()}, "Hostile", "Mallory")
        await recover(shop.commissions.context)
        assert await shop.commissions.all() == []

    workshop.inside(work)


def test_a_status_edited_by_hand_is_reported_and_ignored(workshop: Workshop) -> None:
    async def work(shop: Workshop) -> str:
        made = await shop.new()
        text = shop.repo.at("claude/main", made.path).replace("status: pending", "status: completed")
        branches = shop.services.branches(shop.hall.projects.get("shop"))
        branches.write({made.path: text.encode()}, "By hand", "Ada")
        shown = await shop.commissions.details(made.id)
        assert shown.commission.status == "pending"
        (warning,) = shown.warnings
        assert shown.as_dict()["warnings"] == [warning]
        assert "edited by hand to 'completed'" in warning
        return made.id

    id = workshop.inside(work)

    async def later(shop: Workshop) -> None:
        await shop.commissions.drain()
        shown = await shop.commissions.details(id)
        assert (shown.commission.status, len(shown.warnings)) == ("pending", 1)  # nor silently mended

    workshop.inside(later, recover=True)


def test_an_outdated_artifact_is_written_again(workshop: Workshop) -> None:
    async def work(shop: Workshop) -> str:
        made = await shop.new()
        # As if the process had died between the row and the artifact.
        await shop.hall.store.write(lambda c: records.apply(c, made.id, "cancel", "by the user", "now"))
        return made.id

    id = workshop.inside(work)

    async def later(shop: Workshop) -> None:
        await shop.commissions.drain()
        assert "status: cancelled" in shop.repo.at("claude/main", artifact_path(id))
        assert (await shop.commissions.details(id)).warnings == []

    workshop.inside(later, recover=True)


@pytest.mark.req("COM-27")
def test_an_invalid_project_in_the_settings_stops_nothing_else(workshop: Workshop) -> None:
    other = repository(workshop.home.path.parent / "other")
    other.commit({"README.md": "The other\n"}, "Start")
    Projects(workshop.home).add(other.path, "another")
    workshop.script([submit("Forged."), say()])

    async def leave(shop: Workshop) -> list[str]:
        made = [await shop.new() for _ in range(3)]
        plan = Draft(title="A plan", worker="guide", prompt="Plan.", model="openai:gpt-4o")
        theirs = await shop.commissions.create(shop.hall.projects.get("another"), plan, shop.frame)
        await shop.hall.store.write(lambda c: records.apply(c, made[0].id, "cancel", "by the user", "now"))
        for one in (made[1], theirs):
            branch = f"claude/commission/{one.id}-1"
            await shop.hall.store.write(
                lambda c, one=one, to=branch: records.apply(c, one.id, "dispatch", "x", "now", attempt=1, branch=to)
            )
        lost = made[2].id
        await shop.hall.store.write(lambda c: c.execute(delete(timeline).where(timeline.c.activity == lost)))
        await shop.hall.store.write(lambda c: c.execute(delete(table).where(table.c.id == lost)))
        return [*(one.id for one in made), theirs.id]

    cancelled, turn, lost, theirs = workshop.inside(leave)
    settings = workshop.home.settings
    right = settings.read_text()
    settings.write_text(right.replace("  another:\n", "  another:\n    max_commissions: lots\n"))

    async def later(shop: Workshop) -> None:
        await shop.commissions.drain()
        assert "status: cancelled" in shop.repo.at("claude/main", artifact_path(cancelled))
        again = shop.commissions.get(lost)
        assert (again.status, again.by) == ("pending", "artifact"), "made again from its artifact"
        assert (await shop.quiet(turn)).status == "completed"
        assert [one.status for one in await shop.commissions.all()].count("pending") == 1
        assert shop.commissions.get(theirs).status == "dispatched", "it waits until the line is put right"

    workshop.inside(later, recover=True)

    async def found(shop: Workshop) -> None:
        await shop.commissions.drain()
        assert shop.commissions.get(theirs).status in ("failed", "in_progress"), "its turn has come"

    for wrong in ("  12: {path: 7}\n", "  - x\n"):  # the second: nothing of it can be read
        settings.write_text(f"{right}{wrong}")
        workshop.inside(lambda shop: shop.commissions.drain(), recover=True)
    settings.write_text(right)
    workshop.inside(found, recover=True)


def test_a_dispatched_commission_of_a_removed_project_fails(workshop: Workshop) -> None:
    async def leave(shop: Workshop) -> str:
        made = await shop.new()
        columns = {"attempt": 1, "branch": f"claude/commission/{made.id}-1"}
        await shop.hall.store.write(lambda c: records.apply(c, made.id, "dispatch", "x", "now", **columns))
        return made.id

    id = workshop.inside(leave)
    workshop.home.settings.write_text("projects: {}\n")

    async def later(shop: Workshop) -> None:
        await shop.commissions.drain()
        found = await shop.commissions.details(id)
        assert found.commission.status == "failed"
        assert "shop" in str(found.commission.reason)
        assert found.warnings

    workshop.inside(later, recover=True)
