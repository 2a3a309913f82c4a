"""Dispatch review: commissions of the manager are listed at once, and the user can cancel or edit them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from guildhall.projects.commissions.model import Draft
from tests.projects.commissions.harness import LATE, CommissionProject, say, submit, write

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.paths import Home
    from tests.conftest import Guild

MANAGER = "r-2222222222"  # the run that creates the commission


@pytest.fixture
def harness(tmp_path: Path, home: Home, monkeypatch: pytest.MonkeyPatch) -> CommissionProject:
    made = CommissionProject.at(tmp_path, home)
    monkeypatch.chdir(made.repo.path)
    return made


async def create_and_dispatch(shop: CommissionProject) -> str:
    """Create and dispatch a commission like the tools of the manager, and return its id."""
    draft = Draft(title="A key", worker="smith", prompt="Forge a key.")
    project = shop.hall.projects.get("shop")
    made = await shop.commissions.create(project, draft, shop.frame, by="manager", made_by=MANAGER)
    await shop.commissions.dispatch(made.id, shop.frame)
    return made.id


@pytest.mark.req("WKR-27", "COM-30")
def test_a_commission_of_the_manager_is_listed_cancelled_and_retried(guild: Guild, harness: CommissionProject) -> None:
    harness.script([write("src/key.py", "half\n"), LATE])

    async def begin(shop: CommissionProject) -> str:
        id = await create_and_dispatch(shop)
        path = shop.services.worktrees.path(shop.hall.projects.get("shop"), f"{id}-1")
        await shop.wait_until((path / "src/key.py").exists)
        return id

    id = harness.run_in_hall(begin)
    (row,) = guild("ls", "commissions", "--json").json["commissions"]
    assert (row["commission"], row["status"], row["by"], row["made_by"]) == (id, "in_progress", "manager", MANAGER)
    listed = guild("ls", "commissions").out
    assert "created by" in listed.splitlines()[0]
    assert " manager " in listed
    assert id in guild("ls").out
    done = guild("stop", id, "--reason", "not this one", "--json").json
    assert (done["status"], done["reason"]) == ("cancelled", "not this one")
    assert harness.repo.at(done["branch"], "src/key.py") == "half"
    assert harness.repo.git("ls-tree", "claude/main", "src/key.py") == ""
    lines = guild("show", id, "--json").json["timeline"]
    assert lines[0]["reason"] == f"created by manager, in {MANAGER}"
    assert lines[-1]["after"] == "cancelled"
    harness.script([write("src/lock.py", "whole\n"), submit("Forged."), say()])
    again = guild("retry", id, "--wait", "--json").json
    assert (again["status"], again["attempt"]) == ("completed", 2)
    assert again["branch"] != done["branch"]
    assert harness.repo.at(done["branch"], "src/key.py") == "half"
    assert harness.repo.git("ls-tree", "claude/main", "src/key.py") == ""
    assert again["timeline"][: len(lines)] == lines


@pytest.mark.req("WKR-27")
def test_a_running_commission_of_the_manager_can_be_edited(harness: CommissionProject) -> None:
    harness.script([LATE])

    async def work(shop: CommissionProject) -> None:
        id = await create_and_dispatch(shop)
        shop.script([write("src/key.py", "gold\n"), submit("Of gold."), say()])
        changed = await shop.client.commissions.edit(id, {"prompt": "Of gold.", "max_turns": 9}, shop.frame)
        assert (changed.attempt, changed.by) == (2, "manager")
        done = await shop.wait_ended(id)
        assert (done.status, done.result) == ("completed", "Of gold.")
        reasons = await shop.timeline_reasons(id)
        assert "edited by person: prompt, max_turns" in reasons

    harness.run_in_hall(work)
