"""What waits: for artifacts, for a turn; and what a new hall makes of what an earlier one has left."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import delete

from guildhall.core.errors import Conflict, NotFound
from guildhall.projects.commissions import records
from guildhall.projects.commissions.model import Commission, Draft, artifact_of, working
from guildhall.projects.commissions.recover import recover
from guildhall.projects.registry import Projects
from guildhall.runs.model import Answer
from guildhall.store.guild_tables import commissions as table
from guildhall.store.guild_tables import timeline
from tests.projects.commissions.workshop import LATE, call, say, submit, write
from tests.projects.conftest import repository

if TYPE_CHECKING:
    from tests.projects.commissions.workshop import Workshop


async def status(shop: Workshop, id: str) -> str:
    return (await shop.commissions.shown(id)).commission.status


@pytest.mark.req("COM-7", "SYS-14")
def test_blocked_until_it_is_there_and_back(workshop: Workshop) -> None:
    async def work(shop: Workshop) -> None:
        branches = shop.hall.branches(shop.hall.projects.get("shop"))
        one = await shop.new(dependencies=(".lore/design.md", ".lore/plan.md"))
        assert one.status == "blocked"
        with pytest.raises(Conflict, match=r"waits for \.lore/design\.md"):
            await shop.commissions.dispatch(one.id, shop.frame)
        branches.write({".lore/design.md": b"A design\n"}, "Design", "Ada")
        assert await status(shop, one.id) == "pending"
        branches.write({".lore/design.md": None}, "No design", "Ada")
        assert await status(shop, one.id) == "blocked"
        assert (await shop.commissions.shown(one.id)).neighbours.missing == [".lore/design.md"]
        # a folder is no artifact
        branches.write({".lore/design.md/part.md": b"x\n"}, "A folder", "Ada")
        assert await status(shop, one.id) == "blocked"
        moves = [(m.before, m.after) for m in (await shop.commissions.shown(one.id)).timeline]
        assert moves == [(None, "blocked"), ("blocked", "pending"), ("pending", "blocked")]

    workshop.inside(work)


@pytest.mark.req("COM-7", "SYS-24")
def test_what_the_user_commits_is_there(workshop: Workshop) -> None:
    async def work(shop: Workshop) -> None:
        one, other = await shop.new(dependencies=("docs/a.md",)), await shop.new(dependencies=("docs/b.md",))
        assert (one.status, other.status) == ("blocked", "blocked")
        shop.repo.commit({"docs/a.md": "A\n"})
        assert [found.status for found in await shop.commissions.all("shop")] == ["pending", "blocked"]
        shop.repo.commit({"docs/b.md": "B\n", "docs/c.md": "C\n"})
        await recover(shop.commissions._ground)
        assert shop.commissions.get(other.id).status == "pending"
        shop.repo.commit({"docs/d.md": "D\n"})
        assert (await shop.new(dependencies=("docs/d.md",))).status == "pending"
        # where both have changed the same places it waits, and all else can still be looked at
        branches = shop.hall.branches(shop.hall.projects.get("shop"))
        branches.write({"README.md": b"Ours\n"}, "Ours", "smith")
        shop.repo.commit({"README.md": "Theirs\n", "docs/e.md": "E\n"})
        assert (await shop.new(dependencies=("docs/e.md",))).status == "blocked"
        assert len(await shop.commissions.all()) == 4

    workshop.inside(work)


@pytest.mark.req("COM-7", "SYS-14")
def test_one_waits_for_another(workshop: Workshop) -> None:
    workshop.script([write(".lore/design.md", "A design\n"), submit("Designed."), say()])

    async def work(shop: Workshop) -> None:
        design = await shop.new(title="Design", artifacts=(".lore/design.md",))
        code = await shop.new(title="Code", dependencies=(".lore/design.md",))
        check = await shop.new(title="Check", dependencies=(artifact_of(design.id),))
        assert (code.status, check.status) == ("blocked", "blocked")  # its artifact is there, it itself is not done
        around = (await shop.commissions.shown(code.id)).neighbours
        assert (around.after, around.before) == ([design.id], [])
        await shop.commissions.edit(code.id, {"artifacts": ["x.md"]}, shop.frame)
        with pytest.raises(Conflict, match=f"{design.id} -> x.md -> "):
            await shop.commissions.edit(design.id, {"dependencies": ["x.md"]}, shop.frame)
        await shop.commissions.dispatch(design.id, shop.frame)
        await shop.quiet(design.id)
        # by themselves: nobody has looked at them
        assert [shop.commissions.get(id).status for id in (code.id, check.id)] == ["pending", "pending"]

    workshop.inside(work)


@pytest.mark.req("COM-21")
def test_ten_at_a_time_in_all_where_nobody_says_otherwise(workshop: Workshop) -> None:
    entry = {"path": str(workshop.repo.path), "branch": "main", "max_commissions": 100}
    workshop.home.settings.write_text(json.dumps({"projects": {"shop": entry}}))
    workshop.script([LATE])

    async def work(shop: Workshop) -> None:
        now = "2026-11-16T12:00:00.000Z"

        def others(connection: Any) -> None:  # of other projects; what they do is nothing to this one
            for number in range(9):
                draft = Draft(title=str(number), worker="smith", prompt="Forge.")
                id, other = f"c-000000000{number}", f"other{number % 3}"
                row: dict[str, Any] = {"reason": working("smith"), "created_at": now, "changed_at": now}
                one = Commission(id=id, project=other, draft=draft, status="in_progress", **row)
                records.add(connection, one, "at work")

        await shop.hall.store.write(others)
        tenth, eleventh = await shop.new(), await shop.new()
        assert (await shop.commissions.dispatch(tenth.id, shop.frame)).status == "in_progress"
        assert (await shop.commissions.dispatch(eleventh.id, shop.frame)).status == "dispatched"
        [why] = (await shop.commissions.shown(eleventh.id)).doubts
        assert ("it waits for its turn" in why, tenth.id in why) == (True, True)
        await shop.commissions.cancel(tenth.id)
        await shop.until(eleventh.id, "in_progress")
        await shop.commissions.cancel(eleventh.id)

    workshop.inside(work)


@pytest.mark.req("COM-27")
def test_what_ran_goes_on_at_the_next_start(workshop: Workshop) -> None:
    async def begin(shop: Workshop) -> str:
        made = await shop.new(artifacts=("src/key.py",))
        shop.script([write("src/key.py", "key = 1\n"), {"sleep": 1, **submit("Forged.")}, say()])
        await shop.commissions.dispatch(made.id, shop.frame)
        path = shop.hall.worktrees.path(shop.hall.projects.get("shop"), f"{made.id}-1")
        await shop.so((path / "src/key.py").exists)
        return made.id

    id = workshop.inside(begin)  # which ends like a hall that is told to leave

    async def go_on(shop: Workshop) -> None:
        first = shop.commissions.get(id)
        assert first.status == "in_progress"
        done = await shop.quiet(id)
        assert (done.status, done.result, done.run) == ("completed", "Forged.", first.run), done.reason

    workshop.inside(go_on, recover=True)


@pytest.mark.req("COM-27")
def test_nothing_stays_with_nobody_behind_it(workshop: Workshop) -> None:
    workshop.script([write("src/key.py", "half\n"), LATE])

    async def begin(shop: Workshop) -> tuple[str, str]:
        going = await shop.new()
        await shop.commissions.dispatch(going.id, shop.frame)
        path = shop.hall.worktrees.path(shop.hall.projects.get("shop"), f"{going.id}-1")
        await shop.so((path / "src/key.py").exists)
        waits = await shop.new()
        await shop.hall.store.write(
            lambda c: records.move(
                c, waits.id, "dispatched", "x", "now", attempt=1, branch=f"claude/commission/{waits.id}-1"
            )
        )
        return going.id, waits.id

    going, waits = workshop.inside(begin)
    # The worker is gone: its run cannot go on, and waits for it; and the other one's never began.
    (workshop.repo.path / "workers" / "smith.yaml").unlink()

    async def recovered(shop: Workshop) -> None:
        one, two = await shop.until(going, "in_progress"), await shop.quiet(waits)
        assert two.status == "failed"
        assert one.held
        assert "smith" in str(one.reason)
        ended = await shop.commissions.cancel(going)
        assert shop.repo.at(str(ended.branch), "src/key.py") == "half"
        assert "status: cancelled" in shop.repo.at("claude/main", one.path)

    workshop.inside(recovered, recover=True)
    workshop.repo.fsck()


@pytest.mark.req("COM-2")
def test_a_row_is_made_again_from_its_artifact(workshop: Workshop) -> None:
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
        await shop.commissions.settled()
        again = shop.commissions.get(lost.id)
        expected = {**lost.draft.as_dict(), "checks": []}  # what is executed is not taken from an artifact
        assert again.draft.as_dict() == expected
        assert (again.status, again.created_at) == ("pending", lost.created_at)

    workshop.inside(found, recover=True)


def test_artifacts_that_are_none_are_left_alone(workshop: Workshop) -> None:
    hostile = {
        "c-2222222222": b"",
        "c-3333333333": b"---\ncommission: c-4444444444\n---\n",
        "c-5555555555": b"---\ncommission: c-5555555555\nstatus: done\ntitle: x\nworker: w\nprompt: p\n---\n",
        "c-6666666666": b"---\n&a [*a]\n---\n",
        "c-7777777777": b"\xff\xfe---",
        "c-8888888888": b"---\ncommission: c-8888888888\nstatus: pending\ntitle: x\nworker: w\nprompt: {}\n---\n",
    }

    async def work(shop: Workshop) -> None:
        branches = shop.hall.branches(shop.hall.projects.get("shop"))
        branches.write({artifact_of(id): data for id, data in hostile.items()}, "Hostile", "Mallory")
        await recover(shop.commissions._ground)
        assert await shop.commissions.all() == []

    workshop.inside(work)


def test_a_status_written_by_hand_is_reported_not_obeyed(workshop: Workshop) -> None:
    async def work(shop: Workshop) -> str:
        made = await shop.new()
        text = shop.repo.at("claude/main", made.path).replace("status: pending", "status: completed")
        branches = shop.hall.branches(shop.hall.projects.get("shop"))
        branches.write({made.path: text.encode()}, "By hand", "Ada")
        shown = await shop.commissions.shown(made.id)
        assert shown.commission.status == "pending"
        (doubt,) = shown.doubts
        assert "says 'completed', written by hand" in doubt
        return made.id

    id = workshop.inside(work)

    async def later(shop: Workshop) -> None:
        await shop.commissions.settled()
        shown = await shop.commissions.shown(id)
        assert (shown.commission.status, len(shown.doubts)) == ("pending", 1)  # nor silently mended

    workshop.inside(later, recover=True)


def test_an_artifact_that_is_older_is_written_again(workshop: Workshop) -> None:
    async def work(shop: Workshop) -> str:
        made = await shop.new()
        # As if the process had died between the row and the artifact.
        await shop.hall.store.write(lambda c: records.move(c, made.id, "cancelled", "by the user", "now"))
        return made.id

    id = workshop.inside(work)

    async def later(shop: Workshop) -> None:
        await shop.commissions.settled()
        assert "status: cancelled" in shop.repo.at("claude/main", artifact_of(id))
        assert (await shop.commissions.shown(id)).doubts == []

    workshop.inside(later, recover=True)


@pytest.mark.req("COM-27")
def test_one_wrong_entry_in_the_settings_stops_nothing_else(workshop: Workshop) -> None:
    other = repository(workshop.home.path.parent / "other")
    other.commit({"README.md": "The other\n"}, "Start")
    Projects(workshop.home).add(other.path, "another")
    workshop.script([submit("Forged."), say()])

    async def leave(shop: Workshop) -> list[str]:
        made = [await shop.new() for _ in range(3)]
        plan = Draft(title="A plan", worker="guide", prompt="Plan.", model="openai:gpt-4o")
        theirs = await shop.commissions.create(shop.hall.projects.get("another"), plan, shop.frame)
        await shop.hall.store.write(lambda c: records.move(c, made[0].id, "cancelled", "by the user", "now"))
        for one in (made[1], theirs):
            branch = f"claude/commission/{one.id}-1"
            await shop.hall.store.write(
                lambda c, one=one, to=branch: records.move(c, one.id, "dispatched", "x", "now", attempt=1, branch=to)
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
        await shop.commissions.settled()
        assert "status: cancelled" in shop.repo.at("claude/main", artifact_of(cancelled))
        again = shop.commissions.get(lost)
        assert (again.status, again.by) == ("pending", "artifact"), "made again from its artifact"
        assert (await shop.quiet(turn)).status == "completed"
        assert [one.status for one in await shop.commissions.all()].count("pending") == 1
        assert shop.commissions.get(theirs).status == "dispatched", "it waits until the line is put right"

    workshop.inside(later, recover=True)

    async def found(shop: Workshop) -> None:
        await shop.commissions.settled()
        assert shop.commissions.get(theirs).status in ("failed", "in_progress"), "its turn has come"

    for wrong in ("  12: {path: 7}\n", "  - x\n"):  # the second: nothing of it can be read
        settings.write_text(f"{right}{wrong}")
        workshop.inside(lambda shop: shop.commissions.settled(), recover=True)
    settings.write_text(right)
    workshop.inside(found, recover=True)


def test_an_answer_comes_with_the_next_call(workshop: Workshop) -> None:
    workshop.script(
        [
            call("log_question", question="Which lock?"),
            {"sleep": 0.2, **call("report_progress", summary="On.")},
            submit("x"),
            say(),
        ]
    )

    async def work(shop: Workshop) -> None:
        made = await shop.new()
        begun = await shop.commissions.dispatch(made.id, shop.frame)
        await shop.so(shop.hall.asks.open)
        (ask,) = shop.hall.asks.open()
        assert made.id in ask.question.title
        await shop.client.answer(ask.id, Answer(choice="The front door."))
        done = await shop.quiet(made.id)
        assert done.status == "completed"
        assert "The front door." in str((await shop.client.show(str(begun.run))).messages)
        assert "The front door." in shop.repo.at("claude/main", made.path)

    workshop.inside(work)


def test_two_at_once_dispatch_one(workshop: Workshop) -> None:
    workshop.script([submit("x"), say()])

    async def work(shop: Workshop) -> None:
        made = await shop.new()
        both: list[Any] = await asyncio.gather(
            *(shop.commissions.dispatch(made.id, shop.frame) for _ in range(2)), return_exceptions=True
        )
        assert sorted(isinstance(one, Conflict) for one in both) == [False, True]
        await shop.quiet(made.id)
        assert shop.commissions.get(made.id).attempt == 1

    workshop.inside(work)


def test_a_worker_that_is_not_there_changes_nothing(workshop: Workshop) -> None:
    async def work(shop: Workshop) -> None:
        made = await shop.new()
        (shop.repo.path / "workers" / "smith.yaml").unlink()
        with pytest.raises(NotFound, match="smith"):
            await shop.commissions.dispatch(made.id, shop.frame)
        assert shop.commissions.get(made.id).status == "pending"
        draft = Draft(title="x", worker="nobody", prompt="x")
        with pytest.raises(NotFound, match="nobody"):
            await shop.commissions.create(shop.hall.projects.get("shop"), draft, shop.frame)

    workshop.inside(work)


def test_it_waits_for_an_approval_and_goes_on_by_itself(workshop: Workshop) -> None:
    workshop.worker(tool_rules={"Write": {"approval_required": True}})
    workshop.script([write("src/key.py", "key = 1\n"), submit("Forged."), say()])

    async def work(shop: Workshop) -> None:
        made = await shop.new(artifacts=("src/key.py",))
        begun = await shop.commissions.dispatch(made.id, shop.frame)
        await shop.so(lambda: shop.hall.history.get(str(begun.run)).status == "waiting")
        (ask,) = shop.hall.asks.open()
        shown = await shop.commissions.shown(made.id)
        assert (shown.commission.status, shown.waiting) == ("in_progress", [ask.id])
        await shop.client.answer(ask.id, Answer(choice="yes"))
        done = await shop.quiet(made.id)
        assert done.status == "completed", done.reason

    workshop.inside(work)


def test_cancelled_while_it_waits_for_a_person(workshop: Workshop) -> None:
    workshop.worker(tool_rules={"Write": {"approval_required": True}})
    workshop.script([write("src/key.py", "key = 1\n"), submit("Forged."), say()])

    async def work(shop: Workshop) -> None:
        begun = await shop.commissions.dispatch((await shop.new()).id, shop.frame)
        await shop.so(lambda: shop.hall.history.get(str(begun.run)).status == "waiting")
        (ask,) = shop.hall.asks.open()
        assert (await shop.commissions.cancel(begun.id)).status == "cancelled"
        assert shop.hall.asks.get(ask.id).status == "withdrawn"

    workshop.inside(work)


def test_cancel_after_the_result_comes_too_late(workshop: Workshop) -> None:
    workshop.script([write("src/key.py", "key = 1\n"), submit("Forged."), LATE])

    async def work(shop: Workshop) -> None:
        begun = await shop.commissions.dispatch((await shop.new()).id, shop.frame)
        await shop.so(lambda: shop.commissions.get(begun.id).result == "Forged.")
        await shop.so(
            lambda: any(
                e.kind == "tool_ended" and "submitted" in str(e.data) for e in shop.hall.history.entries(str(begun.run))
            )
        )
        done = await shop.commissions.cancel(begun.id)
        assert (done.status, done.result) == ("completed", "Forged.")
        assert shop.repo.at("claude/main", "src/key.py") == "key = 1"
        assert shop.hall.history.get(str(begun.run)).status == "completed"

    workshop.inside(work)


def test_what_belongs_to_no_project_any_more_does_not_wait_for_ever(workshop: Workshop) -> None:
    async def leave(shop: Workshop) -> str:
        made = await shop.new()
        columns = {"attempt": 1, "branch": f"claude/commission/{made.id}-1"}
        await shop.hall.store.write(lambda c: records.move(c, made.id, "dispatched", "x", "now", **columns))
        return made.id

    id = workshop.inside(leave)
    workshop.home.settings.write_text("projects: {}\n")

    async def later(shop: Workshop) -> None:
        await shop.commissions.settled()
        found = await shop.commissions.shown(id)
        assert found.commission.status == "failed"
        assert "shop" in str(found.commission.reason)
        assert found.doubts

    workshop.inside(later, recover=True)


def test_a_repository_that_is_gone_is_said_and_stops_nothing_else(workshop: Workshop) -> None:
    async def work(shop: Workshop) -> None:
        made = await shop.new(dependencies=(".lore/design.md",))
        shop.repo.path.rename(shop.repo.path.with_name("moved"))
        assert [one.id for one in await shop.commissions.all()] == [made.id]
        shown = await shop.commissions.shown(made.id)
        assert (shown.commission.status, len(shown.doubts)) == ("blocked", 1)
        await recover(shop.commissions._ground)
        assert shop.commissions.get(made.id).status == "blocked"
        shop.repo.path.with_name("moved").rename(shop.repo.path)

    workshop.inside(work)


@pytest.mark.req("COM-21")
def test_who_waits_for_a_person_keeps_nobody_from_beginning(workshop: Workshop) -> None:
    workshop.worker(tool_rules={"Write": {"approval_required": True}})
    workshop.worker("carver")
    workshop.script([write("src/key.py"), submit(), say()], carver=[[LATE]])
    settings = workshop.home.settings
    entry = {"path": str(workshop.repo.path), "branch": "main", "max_commissions": 1}
    settings.write_text(json.dumps({"projects": {"shop": entry}}))

    async def work(shop: Workshop) -> None:
        first = await shop.new()
        second, third = [await shop.new(worker="carver") for _ in range(2)]
        for one in (first, second, third):
            await shop.commissions.dispatch(one.id, shop.frame)
        await shop.until(second.id, "in_progress")
        assert shop.hall.history.get(str(shop.commissions.get(first.id).run)).needs_person
        (told,) = (await shop.commissions.shown(third.id)).doubts
        assert told == f"it waits for its turn: as many commissions of shop are at work as may be: {second.id}"
        # It goes on at once when it can, and counts again.
        (ask,) = shop.hall.asks.open()
        await shop.client.answer(ask.id, Answer(choice="yes"))
        assert (await shop.quiet(first.id)).status == "completed"
        assert shop.commissions.get(third.id).status == "dispatched"
        await shop.commissions.cancel(second.id)
        await shop.until(third.id, "in_progress")

    workshop.inside(work)
