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
from tests.projects.commissions.harness import LATE, CommissionProject, say, submit, write
from tests.projects.conftest import repository


@pytest.mark.req("COM-27")
def test_an_interrupted_run_resumes_at_the_next_start(harness: CommissionProject) -> None:
    async def begin(shop: CommissionProject) -> str:
        made = await shop.create_commission(artifacts=("src/key.py",))
        shop.script([write("src/key.py", "key = 1\n"), {"sleep": 1, **submit("Forged.")}, say()])
        await shop.commissions.dispatch(made.id, shop.frame)
        path = shop.services.worktrees.path(shop.hall.projects.get("shop"), f"{made.id}-1")
        await shop.wait_until((path / "src/key.py").exists)
        return made.id

    id = harness.run_in_hall(begin)  # ends like a hall that was stopped

    async def go_on(shop: CommissionProject) -> None:
        first = shop.commissions.get(id)
        assert first.status == "in_progress"
        done = await shop.wait_ended(id)
        assert (done.status, done.result, done.run) == ("completed", "Forged.", first.run), done.reason

    harness.run_in_hall(go_on, recover=True)


@pytest.mark.req("COM-27")
def test_no_commission_stays_active_without_a_run_or_a_hold(harness: CommissionProject) -> None:
    harness.script([write("src/key.py", "half\n"), LATE])

    async def begin(shop: CommissionProject) -> tuple[str, str]:
        going = await shop.create_commission()
        await shop.commissions.dispatch(going.id, shop.frame)
        path = shop.services.worktrees.path(shop.hall.projects.get("shop"), f"{going.id}-1")
        await shop.wait_until((path / "src/key.py").exists)
        waits = await shop.create_commission()
        await shop.hall.store.write(
            lambda c: records.record_event(
                c, waits.id, "dispatch", "x", "now", attempt=1, branch=f"claude/commission/{waits.id}-1"
            )
        )
        return going.id, waits.id

    going, waits = harness.run_in_hall(begin)
    # The worker is gone: its run cannot go on, and waits for it; and the other one's never began.
    (harness.repo.path / "workers" / "smith.yaml").unlink()

    async def recovered(shop: CommissionProject) -> None:
        one, two = await shop.wait_for_status(going, "in_progress"), await shop.wait_ended(waits)
        assert two.status == "failed"
        assert one.hold is not None
        assert "smith" in one.hold.message
        ended = await shop.commissions.cancel(going)
        assert shop.repo.at(str(ended.branch), "src/key.py") == "half"
        assert "status: cancelled" in shop.repo.at("guildhall/records", one.path)

    harness.run_in_hall(recovered, recover=True)
    harness.repo.fsck()


async def begin_working(shop: CommissionProject) -> Commission:
    """Return a commission in progress whose worker has written a file and not submitted a result."""
    shop.script([write("src/key.py", "key = 1\n"), LATE])
    made = await shop.create_commission()
    await shop.commissions.dispatch(made.id, shop.frame)
    path = shop.services.worktrees.path(shop.hall.projects.get("shop"), f"{made.id}-1")
    await shop.wait_until((path / "src/key.py").exists)
    return shop.commissions.get(made.id)


async def submit_on_record(shop: CommissionProject, id: str) -> None:
    """Do the first of the two writes of `submit_result`: the row has the result, the journal does not."""
    at = shop.commissions.context.now()
    await shop.hall.store.write(lambda c: records.update_fields(c, id, at, result="Forged.", submitted_at=at))


@pytest.mark.req("COM-27")
def test_cancel_completes_a_result_that_only_the_row_has(harness: CommissionProject) -> None:
    async def work(shop: CommissionProject) -> None:
        one = await begin_working(shop)
        await submit_on_record(shop, one.id)
        done = await shop.commissions.cancel(one.id)
        assert (done.status, done.result) == ("completed", "Forged.")
        assert shop.repo.at("claude/main", "src/key.py") == "key = 1"

    harness.run_in_hall(work)


@pytest.mark.req("COM-27")
@pytest.mark.parametrize("is_submitted", [True, False])
def test_a_commission_whose_run_is_not_resumed_is_on_hold_or_completed(
    harness: CommissionProject, is_submitted: bool
) -> None:
    async def begin(shop: CommissionProject) -> str:
        one = await begin_working(shop)
        if is_submitted:
            await submit_on_record(shop, one.id)
        return one.id

    id = harness.run_in_hall(begin)
    with closing(sqlite3.connect(harness.home.database)) as connection:
        connection.execute("UPDATE runs SET status='interrupted', crashes=?", (MAX_CRASHES,))
        connection.commit()

    async def recovered(shop: CommissionProject) -> None:
        if is_submitted:
            assert (await shop.wait_ended(id)).status == "completed"
            assert shop.repo.at("claude/main", "src/key.py") == "key = 1"
            assert not (shop.home.worktrees / "shop" / f"{id}-1").exists()
        else:
            await shop.wait_until(lambda: shop.commissions.get(id).hold is not None)
            held = shop.commissions.get(id)
            assert held.hold is not None
            assert (held.status, held.hold.kind) == ("in_progress", "cannot_resume")
            assert f"guild resume {held.run}" in str(held.hold.hint)

    harness.run_in_hall(recovered, recover=True)
    harness.repo.fsck()


@pytest.mark.req("COM-2")
def test_a_lost_row_is_rebuilt_from_its_artifact(harness: CommissionProject) -> None:
    async def lose(shop: CommissionProject) -> Commission:
        made = await shop.create_commission(
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

    lost: Commission = harness.run_in_hall(lose)

    async def found(shop: CommissionProject) -> None:
        await shop.commissions.drain()
        again = shop.commissions.get(lost.id)
        expected = {**lost.draft.as_dict(), "checks": []}  # what is executed is not taken from an artifact
        assert again.draft.as_dict() == expected
        assert (again.status, again.created_at) == ("pending", lost.created_at)

    harness.run_in_hall(found, recover=True)


def test_invalid_artifacts_are_ignored(harness: CommissionProject) -> None:
    hostile = {
        "c-2222222222": b"",
        "c-3333333333": b"---\ncommission: c-4444444444\n---\n",
        "c-5555555555": b"---\ncommission: c-5555555555\nstatus: done\ntitle: x\nworker: w\nprompt: p\n---\n",
        "c-6666666666": b"---\n&a [*a]\n---\n",
        "c-7777777777": b"\xff\xfe---",
        "c-8888888888": b"---\ncommission: c-8888888888\nstatus: pending\ntitle: x\nworker: w\nprompt: {}\n---\n",
    }

    async def work(shop: CommissionProject) -> None:
        branches = shop.services.branches(shop.hall.projects.get("shop"))
        branches.write_records({artifact_path(id): data for id, data in hostile.items()}, "Hostile", "Mallory")
        await recover(shop.commissions.context)
        assert await shop.commissions.list_commissions() == []

    harness.run_in_hall(work)


def test_a_status_edited_by_hand_is_reported_and_ignored(harness: CommissionProject) -> None:
    async def work(shop: CommissionProject) -> str:
        made = await shop.create_commission()
        text = shop.repo.at("guildhall/records", made.path).replace("status: pending", "status: completed")
        branches = shop.services.branches(shop.hall.projects.get("shop"))
        branches.write_records({made.path: text.encode()}, "By hand", "Ada")
        shown = await shop.commissions.details(made.id)
        assert shown.commission.status == "pending"
        (warning,) = shown.warnings
        assert shown.as_dict()["warnings"] == [warning]
        assert "edited by hand to 'completed'" in warning
        return made.id

    id = harness.run_in_hall(work)

    async def later(shop: CommissionProject) -> None:
        await shop.commissions.drain()
        shown = await shop.commissions.details(id)
        assert (shown.commission.status, len(shown.warnings)) == ("pending", 1)  # nor silently mended

    harness.run_in_hall(later, recover=True)


def test_an_outdated_artifact_is_written_again(harness: CommissionProject) -> None:
    async def work(shop: CommissionProject) -> str:
        made = await shop.create_commission()
        # As if the process had died between the row and the artifact.
        await shop.hall.store.write(lambda c: records.record_event(c, made.id, "cancel", "by the user", "now"))
        return made.id

    id = harness.run_in_hall(work)

    async def later(shop: CommissionProject) -> None:
        await shop.commissions.drain()
        assert "status: cancelled" in shop.repo.at("guildhall/records", artifact_path(id))
        assert (await shop.commissions.details(id)).warnings == []

    harness.run_in_hall(later, recover=True)


@pytest.mark.req("COM-27")
def test_an_invalid_project_in_the_settings_stops_nothing_else(harness: CommissionProject) -> None:
    other = repository(harness.home.path.parent / "other")
    other.commit({"README.md": "The other\n"}, "Start")
    Projects(harness.home).add(other.path, "another")
    harness.script([submit("Forged."), say()])

    async def leave(shop: CommissionProject) -> list[str]:
        made = [await shop.create_commission() for _ in range(3)]
        plan = Draft(title="A plan", worker="guide", prompt="Plan.", model=f"script:{shop.repo.path}/script.yaml")
        theirs = await shop.commissions.create(shop.hall.projects.get("another"), plan, shop.frame)
        await shop.hall.store.write(lambda c: records.record_event(c, made[0].id, "cancel", "by the user", "now"))
        for one in (made[1], theirs):
            branch = f"claude/commission/{one.id}-1"
            await shop.hall.store.write(
                lambda c, one=one, to=branch: records.record_event(
                    c, one.id, "dispatch", "x", "now", attempt=1, branch=to
                )
            )
        lost = made[2].id
        await shop.hall.store.write(lambda c: c.execute(delete(timeline).where(timeline.c.activity == lost)))
        await shop.hall.store.write(lambda c: c.execute(delete(table).where(table.c.id == lost)))
        return [*(one.id for one in made), theirs.id]

    cancelled, turn, lost, theirs = harness.run_in_hall(leave)
    settings = harness.home.settings
    right = settings.read_text()
    settings.write_text(right.replace("  another:\n", "  another:\n    max_commissions: lots\n"))

    async def later(shop: CommissionProject) -> None:
        await shop.commissions.drain()
        assert "status: cancelled" in shop.repo.at("guildhall/records", artifact_path(cancelled))
        again = shop.commissions.get(lost)
        assert (again.status, again.by) == ("pending", "artifact"), "made again from its artifact"
        assert (await shop.wait_ended(turn)).status == "completed"
        assert [one.status for one in await shop.commissions.list_commissions()].count("pending") == 1
        assert shop.commissions.get(theirs).status == "dispatched", "it waits until the line is put right"

    harness.run_in_hall(later, recover=True)

    async def found(shop: CommissionProject) -> None:
        await shop.commissions.drain()
        assert shop.commissions.get(theirs).status in ("failed", "in_progress"), "its turn has come"

    for wrong in ("  12: {path: 7}\n", "  - x\n"):  # the second: nothing of it can be read
        settings.write_text(f"{right}{wrong}")
        harness.run_in_hall(lambda shop: shop.commissions.drain(), recover=True)
    settings.write_text(right)
    harness.run_in_hall(found, recover=True)


def test_a_dispatched_commission_of_a_removed_project_fails(harness: CommissionProject) -> None:
    async def leave(shop: CommissionProject) -> str:
        made = await shop.create_commission()
        columns = {"attempt": 1, "branch": f"claude/commission/{made.id}-1"}
        await shop.hall.store.write(lambda c: records.record_event(c, made.id, "dispatch", "x", "now", **columns))
        return made.id

    id = harness.run_in_hall(leave)
    harness.home.settings.write_text("projects: {}\n")

    async def later(shop: CommissionProject) -> None:
        await shop.commissions.drain()
        found = await shop.commissions.details(id)
        assert found.commission.status == "failed"
        assert "shop" in str(found.commission.reason)
        assert found.warnings

    harness.run_in_hall(later, recover=True)
