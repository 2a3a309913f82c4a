"""Crashes of a meeting: killed at any point, it resumes without lost messages or repeated answers, and git is whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from guildhall.hall.composition.recovery import Recovery
from tests.kill.scene import DEEP, Scene, ends
from tests.projects.meetings.parlour import Parlour, call, say

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from guildhall.core.paths import Home
    from guildhall.testing.scripted_server import ScriptedServer
    from tests.kill.scene import Driver, When

# The commits of the commands when nobody kills them. The first test holds them to what is really there.
OPEN, SAY, CLOSE = 12, 13, 8
FIRST = [call("Write", file_path=".lore/first.md", content="one"), say("one")]
SECOND = [call("link_artifact", path=".lore/plan.md"), say("two")]
# What moves refs: the integration branch, the meeting's own, and those that are kept.
MOVES = "guildhall.projects.git.repository:Git.run_in_repository"


@pytest.fixture
def parlour(home: Home, project: Path) -> Parlour:
    parlour = Parlour.at(home, project)
    parlour.script([*FIRST, *SECOND])
    parlour.repo.commit({}, "The script")
    return parlour


@pytest.fixture
def scene(parlour: Parlour, driver: Driver, server: ScriptedServer) -> Generator[Scene]:
    yield Scene(project=parlour.repo.path, home=parlour.home.path, driver=driver, server=server)
    driver.settle()


def meet(scene: Scene, *words: str) -> Any:
    ended = scene.guild("meet", *words, "--output", "json")
    assert ended.code == 0, ended
    return ended


def only(scene: Scene) -> dict[str, Any] | None:
    found = scene.guild("ls", "meetings", "--all", "--json").json["meetings"]
    assert len(found) <= 1
    return found[0] if found else None


def said(scene: Scene, id: str) -> list[tuple[str, str]]:
    shown = scene.guild("show", id, "--json").json
    return [(one["words"], one["answer"]) for one in shown["exchanges"]]


def judge(scene: Scene, parlour: Parlour) -> None:
    """Check that the next hall repairs the meeting and the user can continue to its end."""
    assert scene.whole()
    parlour.inside(lambda: recover(parlour))
    parlour.repo.fsck()
    meeting = only(scene)
    if meeting is None:
        assert parlour.repo.git("branch", "--list", "claude/meeting/*") == ""
        return
    id = meeting["meeting"]
    if meeting["status"] == "open":
        meet(scene, id)
        expected = [("first", "one"), ("second", "two")]
        found = said(scene, id)
        assert found == expected[: len(found)]
        assert scene.guild("meet", "--close", id).code == 0
    parlour.repo.fsck()
    assert scene.guild("show", id, "--json").json["status"] == "closed"
    assert "They talked." in parlour.repo.at("claude/main", f".lore/meetings/{id}.md")
    assert parlour.repo.at("claude/main", ".lore/first.md") == "one"
    log = parlour.repo.git("log", "--format=%s", "claude/main").splitlines()
    assert log.count("Meeting with architect: first") == 1
    assert parlour.repo.git("branch", "--list", "claude/meeting/*") == ""
    assert not list((scene.home / "worktrees" / "shop").glob("t-*"))
    assert not list((scene.home / "projects" / "shop" / "meetings").glob("*"))
    assert parlour.repo.git("status", "--porcelain", "--untracked-files=no") == ""
    assert scene.guild("replay", scene.guild("show", id, "--json").json["run"]).code == 0


async def recover(parlour: Parlour) -> None:
    await Recovery(parlour.hall).resume_runs()
    await parlour.until(lambda: not parlour.hall.is_busy())


def test_the_sweep_goes_over_every_commit(scene: Scene, parlour: Parlour) -> None:
    opened = meet(scene, "architect", "first")
    id = opened.json["meeting"]
    second = meet(scene, id, "second")
    closed = scene.guild("meet", "--close", id)
    assert (opened.commits, second.commits, closed.commits) == (OPEN, SAY, CLOSE)
    judge(scene, parlour)


@pytest.mark.req("X-2")
@pytest.mark.parametrize(("number", "when"), ends(OPEN))
def test_killed_while_it_is_opened(scene: Scene, parlour: Parlour, number: int, when: When) -> None:
    assert scene.guild_until(number, when, "meet", "architect", "first") is None
    judge(scene, parlour)


@pytest.mark.req("X-2")
@pytest.mark.parametrize(("number", "when"), ends(SAY))
def test_killed_while_something_is_said(scene: Scene, parlour: Parlour, number: int, when: When) -> None:
    id = meet(scene, "architect", "first").json["meeting"]
    assert scene.guild_until(number, when, "meet", id, "second") is None
    judge(scene, parlour)


@pytest.mark.req("X-2", "MTG-20")
@pytest.mark.parametrize(("number", "when"), ends(CLOSE))
def test_killed_while_it_is_closed(scene: Scene, parlour: Parlour, number: int, when: When) -> None:
    id = meet(scene, "architect", "first").json["meeting"]
    assert scene.guild_until(number, when, "meet", "--close", id) is None
    judge(scene, parlour)


@pytest.mark.req("X-7")
@pytest.mark.parametrize("number", (1, 2, 3) if DEEP else (2,))
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_where_a_ref_is_moved(scene: Scene, parlour: Parlour, number: int, when: When) -> None:
    """Points of closing: the work is on its branch, is merged into the integration branch, or the branch is removed."""
    id = meet(scene, "architect", "first").json["meeting"]
    assert scene.guild_until(number, when, "meet", "--close", id, function=MOVES) is None
    judge(scene, parlour)
