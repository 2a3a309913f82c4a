"""Holds: a commission that cannot continue says why, and continues when the cause is removed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from guildhall.core.errors import Conflict
from guildhall.projects.commissions.service import recover
from tests.projects.commissions.harness import LATE, CommissionProject, call, say, submit, write
from tests.projects.conftest import repository

if TYPE_CHECKING:
    from collections.abc import Callable

    from guildhall.projects.commissions.model import Commission
    from tests.conftest import Guild, GuildWithHall

KEY = {"OPENAI_API_KEY": "sk-test-0123456789abcdef0123"}


NEW = ("dispatch", "smith", "Forge a key.", "--project", "shop")


async def begun(shop: CommissionProject, **draft: object) -> Commission:
    """Return a running commission whose worker has written a file."""
    made = await shop.create_commission(**draft)
    await shop.commissions.dispatch(made.id, shop.frame)
    path = shop.services.worktrees.path(shop.hall.projects.get("shop"), f"{made.id}-1")
    await shop.wait_until((path / "src/key.py").exists)
    return shop.commissions.get(made.id)


def renamed(shop: CommissionProject) -> Callable[[], object]:
    shop.repo.git("branch", "-m", "main", "trunk")
    return lambda: shop.repo.git("branch", "-m", "trunk", "main")


def miswritten(shop: CommissionProject) -> Callable[[], object]:
    right = shop.home.settings.read_text()
    shop.home.settings.write_text(right.replace("branch: main", "branch: [main]"))
    return lambda: shop.home.settings.write_text(right)


def elsewhere(shop: CommissionProject) -> Callable[[], object]:
    other = repository(shop.repo.path.with_name("other"))
    other.commit({"README.md": "Another\n"})
    right = shop.home.settings.read_text()
    shop.home.settings.write_text(right.replace(str(shop.repo.path), str(other.path)))
    return lambda: shop.home.settings.write_text(right)


def moved(shop: CommissionProject) -> Callable[[], object]:
    there = shop.repo.path.with_name("there")
    shop.repo.path.rename(there)
    return lambda: there.rename(shop.repo.path)


def unreviewed(shop: CommissionProject) -> Callable[[], object]:
    file = shop.repo.path / "workers/judge.yaml"
    text = file.read_text()
    file.unlink()
    return lambda: file.write_text(text)


@pytest.mark.req("COM-14")
@pytest.mark.parametrize("cancelled", [False, True])
def test_finished_work_is_on_hold_while_the_branch_is_checked_out(harness: CommissionProject, cancelled: bool) -> None:
    slow = {"sleep": 0.3, **write("src/key.py", "key = 1\n")}
    harness.script([call("report_progress", summary="At it."), slow, submit("Forged."), say()])

    async def work(shop: CommissionProject) -> None:
        made = await shop.create_commission()
        await shop.commissions.dispatch(made.id, shop.frame)
        shop.repo.git("switch", "-q", "claude/main")
        run = str(shop.commissions.get(made.id).run)
        await shop.wait_until(lambda: shop.hall.history.get(run).status == "paused")
        assert shop.commissions.get(made.id).status == "in_progress"
        assert (
            "cannot be merged now: cannot move claude/main: it is checked out"
            in (await shop.timeline_reasons(made.id))[-1]
        )
        with pytest.raises(Conflict, match="cannot move claude/main: it is checked out"):
            await shop.commissions.dispatch((await shop.create_commission(title="Another")).id, shop.frame)
        if cancelled:
            ended = await shop.commissions.cancel(made.id)
            assert ended.status == "cancelled"
            assert shop.repo.at(str(ended.branch), "src/key.py") == "key = 1"
            return
        await recover(shop.commissions.context)
        assert shop.commissions.get(made.id).status == "in_progress", "it waits for a person"
        shop.repo.git("switch", "-q", "main")
        _ = [event async for event in shop.client.runs.resume(run, shop.frame)]
        done = await shop.wait_ended(made.id)
        assert (done.status, done.result, done.attempt) == ("completed", "Forged.", 1), done.reason
        assert shop.repo.at("claude/main", "src/key.py") == "key = 1"

    harness.run_in_hall(work)
    harness.repo.fsck()


@pytest.mark.req("COM-27")
def test_a_missing_key_is_a_hold(harness: CommissionProject) -> None:
    harness.worker(model="openai:gpt-4o")

    async def begin(shop: CommissionProject) -> Commission:
        made = await shop.create_commission(frame=replace(shop.frame, keys=KEY))
        await shop.commissions.dispatch(made.id, replace(shop.frame, keys=KEY))
        await shop.wait_for_status(made.id, "in_progress")
        return shop.commissions.get(made.id)

    async def without(shop: CommissionProject) -> Commission:
        await shop.commissions.drain()
        return shop.commissions.get(first.id)

    async def with_it(shop: CommissionProject) -> None:
        assert first.run is not None
        await shop.client.runs.resume(first.run, replace(shop.frame, keys=KEY)).__anext__()
        assert shop.hall.runs.is_alive(first.run)
        assert shop.commissions.get(first.id).hold is None
        await shop.commissions.cancel(first.id)

    first = harness.run_in_hall(begin)
    for _ in range(2):
        waits = harness.run_in_hall(without, recover=True)
        assert (waits.status, waits.run) == ("in_progress", first.run)
        assert waits.hold is not None
        assert (waits.hold.kind, "OPENAI_API_KEY, which is not set" in waits.hold.message) == ("cannot_resume", True)
        assert waits.reason == "smith is working on it", "the reason is that of the last event"
        assert (waits.as_dict()["hold"], waits.as_dict()["reason"]) == ("cannot_resume", waits.explanation)
        assert f"guild resume {first.id}" in waits.explanation
    harness.run_in_hall(with_it)


@pytest.mark.req("COM-27")
def test_an_invalid_setting_is_a_hold(guild_hall: GuildWithHall, harness: CommissionProject) -> None:
    harness.script([write("src/key.py", "key = 1\n"), LATE])
    id = guild_hall(*NEW, "--json").json["commission"]
    guild_hall("hall", "stop")
    settings = harness.home.settings
    right = settings.read_text()
    settings.write_text(right.replace("  shop:\n", "  shop:\n    max_commissions: lots\n"))
    guild_hall("dispatch", "nobody", "x")  # which starts a hall
    waits = guild_hall("wait", id)
    assert waits.code == 4, waits.err + waits.out
    assert "expected a whole number" in waits.out
    assert "expected a whole number" in guild_hall("show", id).out
    settings.write_text(right)
    harness.script([write("src/key.py", "key = 1\n"), submit("Forged."), say()])
    resumed = guild_hall("resume", id)
    assert resumed.code == 0, resumed.err
    assert guild_hall("wait", id).code == 0
    assert harness.repo.at("claude/main", "src/key.py") == "key = 1"


@pytest.mark.req("COM-14")
@pytest.mark.parametrize("in_the_way", [renamed, miswritten, elsewhere, moved, unreviewed])
def test_finished_work_is_on_hold_while_it_cannot_be_merged(
    harness: CommissionProject, in_the_way: Callable[[CommissionProject], Callable[[], object]]
) -> None:
    harness.worker("judge")
    review = [call("submit_review", approved=True, comments="Fine."), say()]
    hold = {"sleep": 0.3, **submit("Forged.")}
    harness.script([write("src/key.py", "key = 1\n"), hold, say()], judge=[review])

    async def work(shop: CommissionProject) -> None:
        one = await begun(shop, reviewer="judge" if in_the_way is unreviewed else None)
        assert one.run is not None
        put_right = in_the_way(shop)
        await shop.wait_until(lambda: shop.hall.history.get(one.run).status == "paused")
        waits = shop.commissions.get(one.id)
        assert (waits.status, waits.hold and waits.hold.kind) == ("in_progress", "cannot_merge"), waits.reason
        put_right()
        _ = [event async for event in shop.client.runs.resume(one.run, shop.frame)]
        done = await shop.wait_ended(one.id)
        assert (done.status, done.attempt) == ("completed", 1), done.reason
        assert shop.repo.at("claude/main", "src/key.py") == "key = 1"

    harness.run_in_hall(work)


@pytest.mark.req("COM-14")
def test_every_command_shows_the_reason_of_a_hold(guild: Guild, harness: CommissionProject) -> None:
    slow = {"sleep": 0.3, **submit("Forged.")}
    harness.script([call("report_progress", summary="At it."), write("src/key.py", "key = 1\n"), slow, say()])

    async def work(shop: CommissionProject) -> str:
        one = await begun(shop)
        renamed(shop)
        await shop.wait_until(lambda: shop.commissions.get(one.id).hold)
        return one.id

    id = harness.run_in_hall(work)
    why = "The work is done but cannot be merged now: branch 'main' of project shop is missing or has no commit"
    for command in (("ls", "commissions"), ("show", id), ("wait", id), ("ls",), ("ls", id)):
        shown = guild(*command).out.partition("timeline")[0]
        assert why[:40] in shown
        assert "smith is working on it" not in shown
    again = guild("resume", id)
    assert (again.code, why in again.err) == (4, True), again.err
    harness.repo.git("branch", "-m", "trunk", "main")
    done = guild("resume", id)
    assert done.code == 0, done.err
    assert harness.repo.at("claude/main", "src/key.py") == "key = 1"
