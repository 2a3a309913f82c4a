"""Commissions over HTTP: states, allowed transitions, slots and recovery after a crash."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.projects.commissions.harness import LATE, CommissionProject, say, submit, write
from tests.projects.conftest import repository
from tests.runs.places import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.paths import Home
    from tests.conftest import GuildWithHall

HALF = [write("src/key.py", "key = 1\n"), LATE]
WHOLE = [write("src/key.py", "key = 1\n"), submit("Forged."), say()]
# Each verb, and the statuses in which it is allowed.
VERBS = {
    "dispatch": {"pending"},
    "redispatch": {"failed", "cancelled"},
    "cancel": {"pending", "blocked", "dispatched", "in_progress"},
    "abandon": {"pending", "blocked", "failed", "cancelled"},
}


class HallApiClient:
    """An HTTP client of the hall."""

    def __init__(self, guild: GuildWithHall, project: Path) -> None:
        self._guild = guild
        self._frame = {"cwd": str(project), "root": str(project)}

    def call(self, verb: str, **arguments: Any) -> Any:
        """Call a verb, and return its result or its error."""
        address = self._guild.hall()
        framed = verb in ("create", "dispatch", "redispatch")
        body = {**arguments, **({"frame": self._frame} if framed else {})}
        bearer = {"Authorization": f"Bearer {address.token}"}
        request = Request(f"{address.url}/api/commissions/{verb}", json.dumps(body).encode(), bearer)
        try:
            with urlopen(request, timeout=20) as answer:
                return json.load(answer)["result"]
        except HTTPError as error:
            return json.load(error)

    def create(self, *, project: str = "shop", begin: bool = False, **more: Any) -> str:
        draft = {"title": "A key", "worker": "smith", "prompt": "Forge a key.", **more}
        id = self.call("create", draft=draft, project=project)["id"]
        if begin:
            self.call("dispatch", id=id)
        return id

    def get(self, id: str) -> dict[str, Any]:
        return self.call("get", id=id)

    def read_statuses(self) -> dict[str, str]:
        return {one["id"]: one["status"] for one in self.call("list")}

    def wait_ended(self, id: str) -> str:
        wait_until(lambda: self.read_statuses()[id] not in ("dispatched", "in_progress"))
        return self.read_statuses()[id]

    def check_refusals(self, id: str) -> str:
        """Check that every verb that the status rules out is refused without effect, and return the status."""
        before = self.get(id)
        status = before["commission"]["status"]
        for verb, from_these in VERBS.items():
            if status not in from_these:
                error = self.call(verb, id=id)["error"]
                assert error["code"] == "conflict"
                assert f"commission {id}: " in error["message"]
        assert self.get(id) == before
        return status


@pytest.fixture
def harness(tmp_path: Path, home: Home, monkeypatch: pytest.MonkeyPatch) -> CommissionProject:
    made = CommissionProject.at(tmp_path, home)
    monkeypatch.chdir(made.repo.path)
    return made


def add_yard(harness: CommissionProject, folder: Path) -> Any:
    """Add another project with the same worker, and limit both projects to four running commissions."""
    yard = repository(folder)
    yard.commit({"README.md": "The yard\n"}, "Start")
    shutil.copytree(harness.repo.path / "workers", folder / "workers")
    shutil.copy(harness.repo.path / "script.yaml", folder)
    more = f'  yard:\n    path: "{folder}"\n    branch: main\ncommissions:\n  max: 4\n'
    harness.home.settings.write_text(harness.home.settings.read_text() + more)
    return yard


@pytest.mark.req("COM-6", "COM-21", "COM-27")
def test_commissions_follow_their_states_and_slots_across_a_crash(
    guild_hall: GuildWithHall, harness: CommissionProject, tmp_path: Path
) -> None:
    harness.script(HALF)
    yard = add_yard(harness, tmp_path / "yard")
    first = guild_hall("dispatch", "smith", "--hold", "Forge.").out.strip()  # starts the hall
    api = HallApiClient(guild_hall, harness.repo.path)
    called_off, second, third, last = (api.create(begin=True) for _ in range(4))
    api.call("dispatch", id=first)
    there, behind = (api.create(project="yard", begin=True) for _ in range(2))
    at_work, waiting = (called_off, second, third, there), (first, last, behind)
    expected = {**dict.fromkeys(at_work, "in_progress"), **dict.fromkeys(waiting, "dispatched")}
    assert api.read_statuses() == expected
    assert "queued: shop has no free slot" in api.get(last)["warnings"][0]
    assert "queued: no free slot" in api.get(behind)["warnings"][0]
    blocked, pending = api.create(dependencies=["none.md"]), api.create()
    seen = {api.check_refusals(id) for id in (second, last, blocked, pending)}
    unwanted = api.call("cancel", id=api.create(begin=True))
    assert (unwanted["status"], unwanted["run"]) == ("cancelled", None), "it never started"
    api.call("cancel", id=called_off)
    wait_until(lambda: api.read_statuses()[first] == "in_progress")  # the oldest queued commission starts
    assert (api.read_statuses()[last], api.read_statuses()[behind]) == ("dispatched", "dispatched")

    # The hall is killed while they run, and one project has no worker when the next hall starts.
    made = [harness.home.worktrees / place / "src/key.py" for place in (f"shop/{second}-1", f"yard/{there}-1")]
    wait_until(lambda: all(path.exists() for path in made))
    guild_hall.kill_hall()
    (yard.path / "workers" / "smith.yaml").unlink()
    harness.script(WHOLE)
    assert guild_hall("stop", "--abandon", pending, "--reason", "no more").code == 0
    assert {api.wait_ended(id) for id in (first, second, third, last)} == {"completed"}
    assert api.wait_ended(behind) == "failed", "it cannot start"
    assert api.read_statuses()[there] == "in_progress"
    hold = api.get(there)["commission"]["hold"]
    assert (hold["kind"], "unknown worker 'smith'" in hold["message"]) == ("cannot_resume", True)
    given_up = api.call("cancel", id=there)
    assert yard.at(given_up["branch"], "src/key.py") == "key = 1", "its work is kept"
    seen |= {api.check_refusals(id) for id in (called_off, second, behind, pending)}
    assert len(seen) == 8

    lines = api.get(second)["timeline"]
    moves = [line["after"] for line in lines if line["after"]]
    assert moves == ["pending", "dispatched", "in_progress", "completed"], "it was resumed"
    assert all(line["reason"] and line["at"] for line in lines)
    assert api.get(pending)["timeline"][-1]["reason"] == "no more"


def test_a_queued_commission_that_the_next_hall_starts_survives_another_crash(
    guild_hall: GuildWithHall, harness: CommissionProject
) -> None:
    harness.script(HALF)
    harness.home.settings.write_text(f"{harness.home.settings.read_text()}commissions:\n  max: 1\n")
    first = guild_hall("dispatch", "smith", "--hold", "Forge.").out.strip()
    api = HallApiClient(guild_hall, harness.repo.path)
    api.call("dispatch", id=first)
    second = api.create(begin=True)
    assert api.read_statuses() == {first: "in_progress", second: "dispatched"}
    guild_hall.kill_hall()
    assert guild_hall("stop", first).code == 0  # starts a hall, which starts the second commission
    made = harness.home.worktrees / f"shop/{second}-1" / "src/key.py"
    wait_until(made.exists)
    guild_hall.kill_hall()
    harness.script(WHOLE)
    assert guild_hall("stop", "--abandon", first).code == 0
    assert api.wait_ended(second) == "completed"
