"""Blocked and pending: dependencies between commissions, and commits of the user."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from guildhall.core.clock import SystemClock
from guildhall.core.errors import Conflict
from guildhall.projects.commissions.dependencies import BranchWatcher
from guildhall.projects.commissions.model import artifact_path
from guildhall.projects.commissions.service import recover
from tests.projects.commissions.harness import CommissionProject, say, submit, write

if TYPE_CHECKING:
    from collections.abc import Callable


async def status(shop: CommissionProject, id: str) -> str:
    return (await shop.commissions.details(id)).commission.status


class Quick(SystemClock):
    """Shorten the time that a dependency is waited for."""

    async def sleep(self, seconds: float) -> None:
        await super().sleep(min(seconds, 0.02))


def moved(shop: CommissionProject) -> Callable[[], object]:
    there = shop.repo.path.with_name("there")
    shop.repo.path.rename(there)
    return lambda: there.rename(shop.repo.path)


@pytest.mark.req("COM-7", "SYS-14")
def test_blocked_until_the_dependency_exists_and_again_when_it_is_removed(
    harness: CommissionProject,
) -> None:
    async def work(shop: CommissionProject) -> None:
        branches = shop.services.branches(shop.hall.projects.get("shop"))
        one = await shop.create_commission(dependencies=(".lore/design.md", ".lore/plan.md"))
        assert one.status == "blocked"
        with pytest.raises(Conflict, match=r"waiting for \.lore/design\.md"):
            await shop.commissions.dispatch(one.id, shop.frame)
        branches.write({".lore/design.md": b"A design\n"}, "Design", "Ada")
        assert await status(shop, one.id) == "pending"
        branches.write({".lore/design.md": None}, "No design", "Ada")
        assert await status(shop, one.id) == "blocked"
        assert (await shop.commissions.details(one.id)).neighbours.missing == [".lore/design.md"]
        # a folder is no artifact
        branches.write({".lore/design.md/part.md": b"x\n"}, "A folder", "Ada")
        assert await status(shop, one.id) == "blocked"
        moves = [(m.before, m.after) for m in (await shop.commissions.details(one.id)).timeline]
        assert moves == [(None, "blocked"), ("blocked", "pending"), ("pending", "blocked")]

    harness.run_in_hall(work)


@pytest.mark.req("COM-7", "SYS-24")
def test_commits_of_the_user_unblock(harness: CommissionProject) -> None:
    async def work(shop: CommissionProject) -> None:
        one, other = (
            await shop.create_commission(dependencies=("docs/a.md",)),
            await shop.create_commission(dependencies=("docs/b.md",)),
        )
        assert (one.status, other.status) == ("blocked", "blocked")
        shop.repo.commit({"docs/a.md": "A\n"})
        assert [found.status for found in await shop.commissions.list_commissions("shop")] == ["pending", "blocked"]
        shop.repo.commit({"docs/b.md": "B\n", "docs/c.md": "C\n"})
        await recover(shop.commissions.context)
        assert shop.commissions.get(other.id).status == "pending"
        shop.repo.commit({"docs/d.md": "D\n"})
        assert (await shop.create_commission(dependencies=("docs/d.md",))).status == "pending"
        # where both have changed the same places it waits, and all else can still be looked at
        branches = shop.services.branches(shop.hall.projects.get("shop"))
        branches.write({"README.md": b"Ours\n"}, "Ours", "smith")
        shop.repo.commit({"README.md": "Theirs\n", "docs/e.md": "E\n"})
        assert (await shop.create_commission(dependencies=("docs/e.md",))).status == "blocked"
        assert len(await shop.commissions.list_commissions()) == 4

    harness.run_in_hall(work)


@pytest.mark.req("COM-7", "SYS-14")
def test_a_commission_unblocks_its_dependents(harness: CommissionProject) -> None:
    harness.script([write(".lore/design.md", "A design\n"), submit("Designed."), say()])

    async def work(shop: CommissionProject) -> None:
        design = await shop.create_commission(title="Design", artifacts=(".lore/design.md",))
        code = await shop.create_commission(title="Code", dependencies=(".lore/design.md",))
        check = await shop.create_commission(title="Check", dependencies=(artifact_path(design.id),))
        assert (code.status, check.status) == ("blocked", "blocked")  # its artifact is there, it itself is not done
        around = (await shop.commissions.details(code.id)).neighbours
        assert (around.after, around.before) == ([design.id], [])
        await shop.commissions.edit(code.id, {"artifacts": ["x.md"]}, shop.frame)
        with pytest.raises(Conflict, match=f"{design.id} -> x.md -> "):
            await shop.commissions.edit(design.id, {"dependencies": ["x.md"]}, shop.frame)
        await shop.commissions.dispatch(design.id, shop.frame)
        await shop.wait_ended(design.id)
        # by themselves: nobody has looked at them
        assert [shop.commissions.get(id).status for id in (code.id, check.id)] == ["pending", "pending"]

    harness.run_in_hall(work)


def test_a_missing_repository_is_reported_and_stops_nothing_else(harness: CommissionProject) -> None:
    async def work(shop: CommissionProject) -> None:
        made = await shop.create_commission(dependencies=(".lore/design.md",))
        shop.repo.path.rename(shop.repo.path.with_name("moved"))
        assert [one.id for one in await shop.commissions.list_commissions()] == [made.id]
        shown = await shop.commissions.details(made.id)
        assert (shown.commission.status, len(shown.warnings)) == ("blocked", 1)
        await recover(shop.commissions.context)
        assert shop.commissions.get(made.id).status == "blocked"
        shop.repo.path.with_name("moved").rename(shop.repo.path)

    harness.run_in_hall(work)


@pytest.mark.req("COM-7", "SYS-24")
def test_the_watcher_sees_commits_of_the_user(harness: CommissionProject) -> None:
    harness.clock = Quick()

    async def work(shop: CommissionProject) -> None:
        await shop.commissions.drain()
        one, other = (
            await shop.create_commission(dependencies=("docs/a.md",)),
            await shop.create_commission(dependencies=("docs/b.md",)),
        )
        assert (one.status, other.status) == ("blocked", "blocked")
        shop.repo.commit({"docs/a.md": "A\n"})
        await shop.wait_for_status(one.id, "pending")
        assert shop.commissions.get(other.id).status == "blocked"
        shop.repo.git("pack-refs", "--all")
        shop.repo.commit({"docs/b.md": "B\n"})
        await shop.wait_for_status(other.id, "pending")
        # What somebody else writes to the integration branch: a meeting that is closed, say.
        third = await shop.create_commission(dependencies=("docs/c.md",))
        branches = shop.services.branches(shop.hall.projects.get("shop"))
        branches.write({"docs/c.md": b"C\n"}, "C", "Ada")
        await shop.wait_for_status(third.id, "pending")

    harness.run_in_hall(work, recover=True)


def test_the_watcher_runs_git_only_if_a_branch_moved(harness: CommissionProject) -> None:
    async def work(shop: CommissionProject) -> None:
        watcher = BranchWatcher(shop.commissions.context)
        assert watcher.find_moved() == [], "nothing is blocked"
        await shop.create_commission(dependencies=("docs/a.md",))
        assert watcher.find_moved() == ["shop"], "it may have come while it was made"
        (shop.repo.path / "docs").mkdir()
        (shop.repo.path / "docs" / "a.md").write_text("Not committed.\n")
        shop.repo.git("add", "docs")
        assert watcher.find_moved() == []
        shop.repo.git("commit", "--quiet", "-m", "Now")
        assert watcher.find_moved() == ["shop"]
        shop.repo.path.rename(shop.repo.path.with_name("moved"))
        assert (watcher.find_moved(), watcher.find_moved()) == (["shop"], []), "nor where it cannot be used"
        shop.repo.path.with_name("moved").rename(shop.repo.path)
        assert (watcher.find_moved(), watcher.find_moved()) == (["shop"], [])

    harness.run_in_hall(work)
