"""Commissions by the HTTP of the hall's own process: how they stand, what may follow on it, and what a crash leaves."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.projects.commissions.workshop import LATE, Workshop, say, submit, write
from tests.projects.conftest import repository
from tests.runs.places import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.paths import Home
    from tests.conftest import GuildWithHall

HALF = [write("src/key.py", "key = 1\n"), LATE]
WHOLE = [write("src/key.py", "key = 1\n"), submit("Forged."), say()]
# What a program may ask for, and how a commission must stand for it.
VERBS = {
    "dispatch": {"pending"},
    "redispatch": {"failed", "cancelled"},
    "cancel": {"pending", "blocked", "dispatched", "in_progress"},
    "abandon": {"pending", "blocked", "failed", "cancelled"},
}


class Desk:
    """A program that speaks to the hall."""

    def __init__(self, guild: GuildWithHall, project: Path) -> None:
        self._guild = guild
        self._frame = {"cwd": str(project), "root": str(project)}

    def ask(self, verb: str, **arguments: Any) -> Any:
        """What comes back; of what is refused, the error."""
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

    def new(self, *, project: str = "shop", begin: bool = False, **more: Any) -> str:
        draft = {"title": "A key", "worker": "smith", "prompt": "Forge a key.", **more}
        id = self.ask("create", draft=draft, project=project)["id"]
        if begin:
            self.ask("dispatch", id=id)
        return id

    def shown(self, id: str) -> dict[str, Any]:
        return self.ask("get", id=id)

    def standing(self) -> dict[str, str]:
        return {one["id"]: one["status"] for one in self.ask("list")}

    def ended(self, id: str) -> str:
        wait_until(lambda: self.standing()[id] not in ("dispatched", "in_progress"))
        return self.standing()[id]

    def refuses(self, id: str) -> str:
        """Whatever may not follow on how it stands is refused, and leaves no trace; how it stands."""
        before = self.shown(id)
        status = before["commission"]["status"]
        for verb, from_these in VERBS.items():
            if status not in from_these:
                error = self.ask(verb, id=id)["error"]
                assert error["code"] == "conflict"
                assert f"{id} is {status}" in error["message"]
        assert self.shown(id) == before
        return status


@pytest.fixture
def workshop(tmp_path: Path, home: Home, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    made = Workshop.at(tmp_path, home)
    monkeypatch.chdir(made.repo.path)
    return made


def add_yard(workshop: Workshop, folder: Path) -> Any:
    """Another project with the same worker; and four commissions may be under way in both together."""
    yard = repository(folder)
    yard.commit({"README.md": "The yard\n"}, "Start")
    shutil.copytree(workshop.repo.path / "workers", folder / "workers")
    shutil.copy(workshop.repo.path / "script.yaml", folder)
    more = f'  yard:\n    path: "{folder}"\n    branch: main\ncommissions:\n  max: 4\n'
    workshop.home.settings.write_text(workshop.home.settings.read_text() + more)
    return yard


@pytest.mark.req("COM-6", "COM-21", "COM-27")
def test_from_state_to_state_so_many_at_a_time_and_over_a_crash(
    guild_hall: GuildWithHall, workshop: Workshop, tmp_path: Path
) -> None:
    workshop.script(HALF)
    yard = add_yard(workshop, tmp_path / "yard")
    first = guild_hall("dispatch", "smith", "--hold", "Forge.").out.strip()  # which starts the hall
    desk = Desk(guild_hall, workshop.repo.path)
    called_off, second, third, last = (desk.new(begin=True) for _ in range(4))
    desk.ask("dispatch", id=first)
    there, behind = (desk.new(project="yard", begin=True) for _ in range(2))
    at_work, waiting = (called_off, second, third, there), (first, last, behind)
    expected = {**dict.fromkeys(at_work, "in_progress"), **dict.fromkeys(waiting, "dispatched")}
    assert desk.standing() == expected
    assert "queued: shop has no free slot" in desk.shown(last)["warnings"][0]
    assert "queued: no free slot" in desk.shown(behind)["warnings"][0]
    blocked, pending = desk.new(dependencies=["none.md"]), desk.new()
    seen = {desk.refuses(id) for id in (second, last, blocked, pending)}
    unwanted = desk.ask("cancel", id=desk.new(begin=True))
    assert (unwanted["status"], unwanted["run"]) == ("cancelled", None), "it never began"
    desk.ask("cancel", id=called_off)
    wait_until(lambda: desk.standing()[first] == "in_progress")  # of those that wait, the oldest
    assert (desk.standing()[last], desk.standing()[behind]) == ("dispatched", "dispatched")

    # The hall is killed while they work; and one of them has no worker any more when the next one starts.
    made = [workshop.home.worktrees / place / "src/key.py" for place in (f"shop/{second}-1", f"yard/{there}-1")]
    wait_until(lambda: all(path.exists() for path in made))
    guild_hall.kill_hall()
    (yard.path / "workers" / "smith.yaml").unlink()
    workshop.script(WHOLE)
    assert guild_hall("stop", "--abandon", pending, "--reason", "no more").code == 0
    assert {desk.ended(id) for id in (first, second, third, last)} == {"completed"}
    assert desk.ended(behind) == "failed", "it cannot begin"
    assert desk.standing()[there] == "in_progress"
    hold = desk.shown(there)["commission"]["hold"]
    assert (hold["kind"], "unknown worker 'smith'" in hold["message"]) == ("cannot_resume", True)
    given_up = desk.ask("cancel", id=there)
    assert yard.at(given_up["branch"], "src/key.py") == "key = 1", "its work is kept"
    seen |= {desk.refuses(id) for id in (called_off, second, behind, pending)}
    assert len(seen) == 8

    lines = desk.shown(second)["timeline"]
    moves = [line["after"] for line in lines if line["after"]]
    assert moves == ["pending", "dispatched", "in_progress", "completed"], "it went on where it was"
    assert all(line["reason"] and line["at"] for line in lines)
    assert desk.shown(pending)["timeline"][-1]["reason"] == "no more"
