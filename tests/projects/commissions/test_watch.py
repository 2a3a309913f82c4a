"""While a hall is there, what a blocked commission waits for is seen without anybody's looking."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from guildhall.core.clock import SystemClock
from guildhall.projects.commissions.watch import Watch

if TYPE_CHECKING:
    from tests.projects.commissions.workshop import Workshop


class Quick(SystemClock):
    """Nobody waits for long."""

    async def sleep(self, seconds: float) -> None:
        await super().sleep(min(seconds, 0.02))


@pytest.mark.req("COM-7", "SYS-24")
def test_what_the_user_commits_is_seen_by_itself(workshop: Workshop) -> None:
    workshop.clock = Quick()

    async def work(shop: Workshop) -> None:
        await shop.commissions.settled()
        one, other = await shop.new(dependencies=("docs/a.md",)), await shop.new(dependencies=("docs/b.md",))
        assert (one.status, other.status) == ("blocked", "blocked")
        shop.repo.commit({"docs/a.md": "A\n"})
        await shop.until(one.id, "pending")
        assert shop.commissions.get(other.id).status == "blocked"
        shop.repo.git("pack-refs", "--all")
        shop.repo.commit({"docs/b.md": "B\n"})
        await shop.until(other.id, "pending")
        # What somebody else writes to the integration branch: a meeting that is closed, say.
        third = await shop.new(dependencies=("docs/c.md",))
        branches = shop.hall.branches(shop.hall.projects.get("shop"))
        branches.write({"docs/c.md": b"C\n"}, "C", "Ada")
        await shop.until(third.id, "pending")

    workshop.inside(work, recover=True)


def test_git_is_asked_only_where_something_has_changed(workshop: Workshop) -> None:
    async def work(shop: Workshop) -> None:
        watch = Watch(shop.commissions._ground)
        assert watch._moved() == [], "nothing is blocked"
        await shop.new(dependencies=("docs/a.md",))
        assert watch._moved() == ["shop"], "it may have come while it was made"
        (shop.repo.path / "docs").mkdir()
        (shop.repo.path / "docs" / "a.md").write_text("Not committed.\n")
        shop.repo.git("add", "docs")
        assert watch._moved() == []
        shop.repo.git("commit", "--quiet", "-m", "Now")
        assert watch._moved() == ["shop"]
        shop.repo.path.rename(shop.repo.path.with_name("moved"))
        assert (watch._moved(), watch._moved()) == (["shop"], []), "nor where it cannot be used"
        shop.repo.path.with_name("moved").rename(shop.repo.path)
        assert (watch._moved(), watch._moved()) == (["shop"], [])

    workshop.inside(work)
