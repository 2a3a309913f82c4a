"""Crashes of a meeting: killed at any point, it resumes without lost messages or repeated answers, and git is whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from guildhall.hall.composition.recovery import Recovery
from tests.kill.harness import DEEP, KillHarness, ends
from tests.projects.meetings.harness import MeetingProject, call, say

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from guildhall.core.paths import Home
    from guildhall.testing.scripted_server import ScriptedServer
    from tests.kill.harness import Driver, When

# The commits of the commands when nobody kills them. The first test holds them to what is really there.
OPEN, SAY, CLOSE = 12, 13, 8
FIRST = [call("Write", file_path=".lore/first.md", content="one"), say("one")]
SECOND = [call("link_artifact", path=".lore/plan.md"), say("two")]
# What moves refs: the integration branch, the meeting's own, and those that are kept.
MOVES = "guildhall.projects.git.repository:Git.run_in_repository"


@pytest.fixture
def shop(home: Home, project: Path) -> MeetingProject:
    shop = MeetingProject.at(home, project)
    shop.script([*FIRST, *SECOND])
    shop.repo.commit({}, "The script")
    return shop


@pytest.fixture
def harness(shop: MeetingProject, driver: Driver, server: ScriptedServer) -> Generator[KillHarness]:
    yield KillHarness(project=shop.repo.path, home=shop.home.path, driver=driver, server=server)
    driver.settle()


def meet(harness: KillHarness, *words: str) -> Any:
    ended = harness.guild("meet", *words, "--output", "json")
    assert ended.code == 0, ended
    return ended


def only(harness: KillHarness) -> dict[str, Any] | None:
    found = harness.guild("ls", "meetings", "--all", "--json").json["meetings"]
    assert len(found) <= 1
    return found[0] if found else None


def said(harness: KillHarness, id: str) -> list[tuple[str, str]]:
    shown = harness.guild("show", id, "--json").json
    return [(one["user_message"], one["answer"]) for one in shown["exchanges"]]


def check_resumed_run(harness: KillHarness, shop: MeetingProject) -> None:
    """Check that the next hall repairs the meeting and the user can continue to its end."""
    assert harness.is_complete()
    shop.run_in_hall(lambda: recover(shop))
    shop.repo.fsck()
    meeting = only(harness)
    if meeting is None:
        assert shop.repo.git("branch", "--list", "claude/meeting/*") == ""
        return
    id = meeting["meeting"]
    if meeting["status"] == "open":
        meet(harness, id)
        expected = [("first", "one"), ("second", "two")]
        found = said(harness, id)
        assert found == expected[: len(found)]
        assert harness.guild("meet", "--close", id).code == 0
    shop.repo.fsck()
    assert harness.guild("show", id, "--json").json["status"] == "closed"
    assert "They talked." in shop.repo.at("guildhall/records", f".lore/meetings/{id}.md")
    assert shop.repo.at("claude/main", ".lore/first.md") == "one"
    log = shop.repo.git("log", "--format=%s", "claude/main").splitlines()
    assert log.count("Meeting with architect: first") == 1
    assert shop.repo.git("branch", "--list", "claude/meeting/*") == ""
    assert not list((harness.home / "worktrees" / "shop").glob("t-*"))
    assert not list((harness.home / "projects" / "shop" / "meetings").glob("*"))
    assert shop.repo.git("status", "--porcelain", "--untracked-files=no") == ""
    assert harness.guild("replay", harness.guild("show", id, "--json").json["run"]).code == 0


async def recover(shop: MeetingProject) -> None:
    await Recovery(shop.hall).resume_runs()
    await shop.wait_until(lambda: not shop.hall.is_busy())


def test_the_sweep_goes_over_every_commit(harness: KillHarness, shop: MeetingProject) -> None:
    opened = meet(harness, "architect", "first")
    id = opened.json["meeting"]
    second = meet(harness, id, "second")
    closed = harness.guild("meet", "--close", id)
    assert (opened.commits, second.commits, closed.commits) == (OPEN, SAY, CLOSE)
    check_resumed_run(harness, shop)


@pytest.mark.req("X-2")
@pytest.mark.parametrize(("number", "when"), ends(OPEN))
def test_killed_while_it_is_opened(harness: KillHarness, shop: MeetingProject, number: int, when: When) -> None:
    assert harness.guild_until(number, when, "meet", "architect", "first") is None
    check_resumed_run(harness, shop)


@pytest.mark.req("X-2")
@pytest.mark.parametrize(("number", "when"), ends(SAY))
def test_killed_while_something_is_said(harness: KillHarness, shop: MeetingProject, number: int, when: When) -> None:
    id = meet(harness, "architect", "first").json["meeting"]
    assert harness.guild_until(number, when, "meet", id, "second") is None
    check_resumed_run(harness, shop)


@pytest.mark.req("X-2", "MTG-20")
@pytest.mark.parametrize(("number", "when"), ends(CLOSE))
def test_killed_while_it_is_closed(harness: KillHarness, shop: MeetingProject, number: int, when: When) -> None:
    id = meet(harness, "architect", "first").json["meeting"]
    assert harness.guild_until(number, when, "meet", "--close", id) is None
    check_resumed_run(harness, shop)


@pytest.mark.req("X-7")
@pytest.mark.parametrize("number", (1, 2, 3) if DEEP else (2,))
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_where_a_ref_is_moved(harness: KillHarness, shop: MeetingProject, number: int, when: When) -> None:
    """Points of closing: the work is on its branch, is merged into the integration branch, or the branch is removed."""
    id = meet(harness, "architect", "first").json["meeting"]
    assert harness.guild_until(number, when, "meet", "--close", id, function=MOVES) is None
    check_resumed_run(harness, shop)
