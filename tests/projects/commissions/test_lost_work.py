"""Work that would be lost: files that git cannot merge, and checkouts that were removed."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from guildhall.core.errors import Conflict, NotFulfilled
from guildhall.projects.commissions.contract import submit as submit_result
from guildhall.runs.purpose import Contract
from tests.projects.commissions.harness import LATE, call, say, submit, write
from tests.runs.places import wait_until

if TYPE_CHECKING:
    from tests.conftest import Guild, GuildWithHall
    from tests.projects.commissions.harness import CommissionProject

NEW = ("dispatch", "smith", "Forge a key.", "--project", "shop")
HELD = ("dispatch", "smith", "--hold", "Forge a key.")


def with_submodule(harness: CommissionProject) -> None:
    """Add a submodule to the user's repository. Worktrees do not check it out."""
    repo = harness.repo
    repo.git("update-index", "--add", "--cacheinfo", f"160000,{repo.git('rev-parse', 'HEAD')},lib")
    repo.git("commit", "-q", "-m", "A library")


@pytest.mark.req("COM-14", "X-6", "X-7")
def test_files_in_a_submodule_are_refused_and_kept_aside(guild: Guild, harness: CommissionProject) -> None:
    with_submodule(harness)
    harness.worker(tools=["Bash"])
    inside = write("lib/key.py", "precious\n")
    moved = call("Bash", command="mv lib/key.py src/key.py")
    harness.script([inside, submit("Forged."), moved, submit("Forged, beside."), say()])
    done = guild(*NEW, "--wait", "--json")
    assert (done.code, done.json["status"], done.json["result"]) == (0, "completed", "Forged, beside."), done.out
    assert harness.repo.at("claude/main", "src/key.py") == "precious"
    id = done.json["commission"]
    assert "lib cannot be committed: it is a submodule" in guild("log", id).out

    harness.script([inside, submit("Forged."), say()])
    failed = guild(*NEW, "--wait", "--json")
    assert (failed.code, failed.json["status"]) == (1, "failed"), failed.out
    assert "lib cannot be committed" in failed.json["reason"]
    id = failed.json["commission"]
    place = harness.home.aside / "shop" / f"{id}-1-1"
    assert (place / "lib/key.py").read_text() == "precious\n"
    assert f"moved to {place}: lib" in guild("show", id).out
    assert guild("stop", "--abandon", id).code == 0
    removed = guild("project", "rm", "shop")
    assert removed.code == 0, removed.err


@pytest.mark.req("X-6")
def test_artifacts_in_folders_of_the_hall_are_refused(guild: Guild, harness: CommissionProject) -> None:
    id = guild(*HELD, "--json").json["commission"]
    for place in (".lore/meetings/design.md", ".lore/commissions/plan.md", ".lore/reviews/a/b.md", ".lore/meetings"):
        for refused in (guild(*HELD, "--artifact", place), guild("edit", id, "--artifact", place)):
            assert refused.code == 2, refused.err
            assert f"artifacts: invalid path {place!r}: only the hall may write there" in refused.err
    assert guild("edit", id, "--artifact", ".lore/meetings.md").code == 0


@pytest.mark.req("X-6", "COM-14")
def test_new_files_in_folders_of_the_hall_are_refused(harness: CommissionProject) -> None:
    harness.script([write(".lore/reviews/2026-11-16-1.md"), write(".lore/meetings/design.md"), submit(), say()])

    async def work(shop: CommissionProject) -> None:
        done = await shop.run_commission()
        assert done.status == "failed"
        assert "2026-11-16-1.md: only the hall may write there; move it elsewhere" in str(done.reason)
        assert shop.repo.git("ls-tree", "-r", "--name-only", "claude/main", ".lore/meetings", ".lore/reviews") == ""

    harness.run_in_hall(work)


@pytest.mark.req("COM-14")
def test_the_worker_is_warned_of_files_that_are_not_merged(harness: CommissionProject) -> None:
    other, summary = ".lore/commissions/c-other.md", ".lore/reviews/2026-11-16-1.md"
    harness.repo.commit({".gitignore": "*.draft\n", other: "status: pending\n", summary: "git merge claude/main\n"})

    async def work(shop: CommissionProject) -> None:
        shop.script(
            [
                write("key.draft", "precious\n"),
                call("Read", file_path=other),
                write(other, "status: completed\n"),
                call("Read", file_path=summary),
                write(summary, "git push --force\n"),
                submit(),
                say(),
            ]
        )
        done = await shop.run_commission()
        assert done.status == "completed", done.reason
        said = str((await shop.client.runs.get(str(done.run))).messages)
        assert (
            "Not merged, because git ignores these files: key.draft. If these files are part of the work, change"
            in said
        )
        assert f"Not merged, because only the hall may write there: {other}, {summary}." in said
        assert "status: pending" in shop.repo.at("claude/main", other)
        assert shop.repo.at("claude/main", summary) == "git merge claude/main"

    harness.run_in_hall(work)


@pytest.mark.req("SYS-38", "COM-14", "X-7")
def test_a_removed_checkout_is_restored_and_reported_to_the_worker(
    guild_hall: GuildWithHall, harness: CommissionProject
) -> None:
    first = write("src/key.py", "precious\n")
    harness.script([first, LATE])
    id = guild_hall(*NEW, "--json").json["commission"]
    checkout = harness.home.worktrees / "shop" / f"{id}-1"
    wait_until((checkout / "src/key.py").exists)
    guild_hall.kill_hall()
    shutil.rmtree(checkout)
    harness.script([first, submit("Forged."), first, submit("Forged again."), say()])
    assert guild_hall("dispatch", "nobody", "x").code == 3  # which starts a hall
    done = guild_hall("wait", id, "--json")
    assert (done.code, done.json["result"]) == (0, "Forged again."), done.out
    assert harness.repo.at("claude/main", "src/key.py") == "precious"
    told = "the checkout was removed, and was created again from its branch"
    assert "restore_checkout" in [one["kind"] for one in done.json["timeline"]]
    assert f"{told}: your changes since the last submitted result are lost: src/key.py" in guild_hall("log", id).out


@pytest.mark.req("X-7")
def test_lost_work_is_reported_by_one_call_as_often_as_it_is_repeated(harness: CommissionProject) -> None:
    harness.script([write("src/key.py"), LATE])

    async def work(shop: CommissionProject) -> None:
        made = await shop.create_commission()
        await shop.commissions.dispatch(made.id, shop.frame)
        await shop.wait_until((shop.home.worktrees / "shop" / f"{made.id}-1" / "src/key.py").exists)
        shop.commissions.record_lost_checkout(f"{made.id}-1")
        context, contract = shop.commissions.context, Contract()
        for _ in range(2):  # the hall may die before the result of the call is on record
            with pytest.raises(NotFulfilled, match=r"lost: src/key\.py"):
                await submit_result(context, made.id, "call-1", contract, "Forged.")
        await submit_result(context, made.id, "call-2", contract, "Forged.")
        assert shop.commissions.get(made.id).is_submitted
        shop.commissions.record_lost_checkout(f"{made.id}-1")
        with pytest.raises(NotFulfilled):
            await submit_result(context, made.id, "call-3", contract, "Forged again.")

    harness.run_in_hall(work)


@pytest.mark.req("X-7")
def test_stale_checkouts_are_removed_at_the_next_start_even_if_one_is_broken(
    harness: CommissionProject,
) -> None:
    harness.script([submit(), say()])

    async def work(shop: CommissionProject) -> tuple[str, str]:
        one, two = await shop.run_commission(), await shop.run_commission()
        project = shop.hall.projects.get("shop")
        for done in (one, two):  # as if they could not be removed before
            path = shop.services.worktrees.check_out(project, f"{done.id}-1", f"claude/commission/{done.id}-1", "full")
            (path / "late.py").write_text("late\n")
            await shop.commissions.delete(done.id)
        bad, good = sorted((one.id, two.id))
        (shop.home.worktrees / "shop" / f"{bad}-1.json").write_text("no record")
        with pytest.raises(Conflict, match=f"with checkouts of finished work: {bad}-1, {good}-1") as refused:
            await shop.client.projects.remove("shop")
        assert refused.value.where == str(shop.home.worktrees / "shop")
        return bad, good

    async def later(shop: CommissionProject) -> None:
        await shop.commissions.drain()
        assert shop.services.worktrees.list_activities("shop") == [f"{bad}-1"]
        assert shop.repo.at(f"claude/commission/{good}-1", "late.py") == "late"

    bad, good = harness.run_in_hall(work)
    harness.run_in_hall(later, recover=True)
