"""From the making of a commission to its work on the integration branch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.projects.commissions.workshop import say, submit, write

if TYPE_CHECKING:
    from tests.projects.commissions.workshop import Workshop


@pytest.mark.req("COM-2", "COM-6")
def test_from_new_to_completed(workshop: Workshop) -> None:
    workshop.script([write("src/key.py", "key = 1\n"), submit("Forged."), say()])
    before = workshop.repo.git("status", "--porcelain", "--branch"), workshop.repo.git("rev-parse", "main")

    async def work(shop: Workshop) -> None:
        made = await shop.new(artifacts=("src/key.py",))
        assert made.status == "pending"
        assert "status: pending" in shop.repo.at("claude/main", made.path)
        await shop.commissions.dispatch(made.id, shop.frame)
        done = await shop.quiet(made.id)
        assert (done.status, done.result, done.attempt) == ("completed", "Forged.", 1), done
        shown = await shop.commissions.shown(made.id)
        assert [one.after for one in shown.timeline if one.after] == [
            "pending",
            "dispatched",
            "in_progress",
            "completed",
        ]
        assert all(one.at and one.reason for one in shown.timeline)
        assert shown.doubts == []
        assert shown.worktree is None
        repo = shop.repo
        assert repo.at("claude/main", "src/key.py") == "key = 1"
        text = repo.at("claude/main", made.path)
        assert "status: completed" in text
        assert "Forged." in text
        # one commit for all of it, by the worker
        assert repo.git("log", "-1", "--format=%an %s", "claude/main") == "smith A key"
        changed = repo.git("show", "--format=", "--name-only", "claude/main").split()
        assert sorted(changed) == sorted([made.path, "src/key.py"])
        # the branch is kept out of the way
        assert f"refs/guildhall/kept/commission/{made.id}-1" in shop.branches()
        assert not [ref for ref in shop.branches() if ref.startswith("refs/heads/claude/commission")]

    workshop.inside(work)
    after = workshop.repo.git("status", "--porcelain", "--branch"), workshop.repo.git("rev-parse", "main")
    assert after == before
    workshop.repo.fsck()
