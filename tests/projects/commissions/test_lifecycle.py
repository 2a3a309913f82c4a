"""The usual life of a commission, from creation to the merge."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from guildhall.projects.commissions.assignee_tools import commission_tools
from guildhall.projects.commissions.contract import REVIEW_TOOLS
from guildhall.workers.model import SYSTEM_TOOLS
from tests.projects.commissions.harness import call, say, submit, write

if TYPE_CHECKING:
    from tests.projects.commissions.harness import CommissionProject


@pytest.mark.req("COM-2", "COM-6")
def test_from_new_to_completed(harness: CommissionProject) -> None:
    harness.script([write("src/key.py", "key = 1\n"), submit("Forged."), say()])
    before = (
        harness.repo.git("status", "--porcelain", "--branch"),
        harness.repo.git("rev-parse", "main"),
    )

    async def work(shop: CommissionProject) -> None:
        made = await shop.create_commission(artifacts=("src/key.py",))
        assert made.status == "pending"
        assert "status: pending" in shop.repo.at("guildhall/records", made.path)
        await shop.commissions.dispatch(made.id, shop.frame)
        done = await shop.wait_ended(made.id)
        assert (done.status, done.result, done.attempt) == ("completed", "Forged.", 1), done
        shown = await shop.commissions.details(made.id)
        assert [one.after for one in shown.timeline if one.after] == [
            "pending",
            "dispatched",
            "in_progress",
            "completed",
        ]
        assert all(one.at and one.reason for one in shown.timeline)
        assert shown.warnings == []
        assert shown.worktree is None
        repo = shop.repo
        assert repo.at("claude/main", "src/key.py") == "key = 1"
        text = repo.at("guildhall/records", made.path)
        assert "status: completed" in text
        assert "Forged." in text
        # one commit for all of it, by the worker
        assert repo.git("log", "-1", "--format=%an %s", "claude/main") == "smith A key"
        changed = repo.git("show", "--format=", "--name-only", "claude/main").split()
        assert changed == ["src/key.py"]
        # the branch is kept out of the way
        assert f"refs/guildhall/kept/commission/{made.id}-1" in shop.branches()
        assert not [ref for ref in shop.branches() if ref.startswith("refs/heads/claude/commission")]

    harness.run_in_hall(work)
    after = (
        harness.repo.git("status", "--porcelain", "--branch"),
        harness.repo.git("rev-parse", "main"),
    )
    assert after == before
    harness.repo.fsck()


@pytest.mark.req("WKR-10")
def test_the_tools_of_a_commission(harness: CommissionProject) -> None:
    harness.worker(tools=["WebFetch"])
    harness.script([submit("Forged."), say()])

    async def work(shop: CommissionProject) -> None:
        done = await shop.run_commission()
        shown = [tool["name"] for tool in shop.hall.history.entries(str(done.run))[0].data.tools]
        assert {"report_progress", "log_question", "submit_result"} <= set(shown)
        assert {"Read", "Grep", "Glob", "Write", "Edit", "WebFetch", "record_decision", "memory_write"} <= set(shown)
        assert set(shown).isdisjoint({"Bash", "WebSearch", "update_summary", "write_artifact", "submit_review"})
        assert sorted(shown) == sorted(set(shown))

    harness.run_in_hall(work)
    assert {tool.name for tool in (*commission_tools(None), *REVIEW_TOOLS)} <= set(SYSTEM_TOOLS)


def test_a_sparse_checkout_has_only_the_lore_folder(harness: CommissionProject) -> None:
    harness.worker(checkout="sparse")
    look = [call("Read", file_path=".lore/plan.md"), call("Read", file_path="README.md")]
    harness.script([*look, write(".lore/notes.md", "noted\n"), submit("Noted."), say()])

    async def work(shop: CommissionProject) -> None:
        # checks are about all of the project, whatever the worker has of it
        done = await shop.run_commission(
            artifacts=(".lore/notes.md",), checks=("test -e .lore/notes.md && test -e README.md",)
        )
        assert done.status == "completed", done.reason
        ends = [one.data.result for one in shop.hall.history.entries(str(done.run)) if one.kind == "tool_ended"]
        assert [end["is_error"] for end in ends] == [False, True, False, False]
        assert shop.repo.at("claude/main", ".lore/notes.md") == "noted"
        assert shop.repo.at("claude/main", "README.md") == "The shop"

    harness.run_in_hall(work)
