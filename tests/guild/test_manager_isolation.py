"""Manager isolation: commissioning, dispatch and pull requests are the shipped manager's alone, and for people only."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.core.paths import Home
from guildhall.workers.registry import SHIPPED
from tests.guild.house import House
from tests.guild.packages import WRITER, put_package
from tests.guild.test_toolbox_resolution import ARTIFACTS, BASE, CONTEXT, FREE, MANAGER

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Guild

SCRIPT = "script:answers.yaml"


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> House:
    """In which the shipped manager is put to work, as smith is elsewhere."""
    folder = tmp_path_factory.mktemp("house")
    built = House.built(folder, Home(folder / "home"))
    built.furnish()
    model = {"model": "script:script.yaml"}
    call = {"call": "worker_call", "with": {"worker_name": "shipped/manager", "input_data": "Go."}}
    team = {"context": {"documentOwner": "none"}, "kickoff": "@smith go"}
    files = {
        "workers/caller.yaml": {"name": "caller", "instructions": "x", **model, "allow_workers": ["shipped/manager"]},
        "script.yaml": {"workers": {"caller": [[call, {"say": "called"}]], "*": [[{"say": "done"}]]}, "repeat": True},
        "team.yaml": {**team, "agents": {"smith": {"worker": "shipped/manager", **model}}},
    }
    for name, text in files.items():
        (built.repo.path / name).write_text(json.dumps(text))
    return built


@pytest.mark.req("WKR-26", "WKR-25", "WKR-8")
@pytest.mark.parametrize("context", ["run", "meeting", "called", "room", "job", "commission"])
def test_the_manager_has_its_toolbox_where_it_works_for_a_person(house: House, context: str) -> None:
    """Not where another run has called it, nor where it is one of a team or does work itself."""
    shown = house.shown(context, worker="shipped/manager")
    own = MANAGER if context in ("run", "meeting") else []
    seat = CONTEXT[context]
    base = [name for name in [*BASE, *ARTIFACTS, *own] if name not in seat]
    assert shown == [*base, *seat, *FREE.get(context, [])]


def put(project: Path, name: str, **fields: Any) -> None:
    (project / "workers").mkdir(exist_ok=True)
    (project / "workers" / f"{name}.yaml").write_text(json.dumps({"name": name, "instructions": "You lead.", **fields}))


def tools(guild: Guild, worker: str) -> list[str]:
    ran = guild("run", worker, "go", "--model", SCRIPT, "--output", "json")
    assert ran.code == 0, ran.err
    first = json.loads(guild("log", ran.json["run"], "--json").out.splitlines()[0])
    return [tool["name"] for tool in first["data"]["tools"]]


@pytest.fixture
def answers(project: Path) -> Path:
    path = project / "answers.yaml"
    calls = [{"call": name, "with": {}} for name in MANAGER]
    path.write_text(json.dumps({"workers": {"*": [[{"calls": calls}, {"say": "done"}]]}, "repeat": True}))
    return path


@pytest.mark.req("WKR-26")
def test_one_of_the_same_name_is_a_worker_like_others(guild: Guild, project: Path, home: Home, answers: Path) -> None:
    shipped = (SHIPPED / "manager.yaml").read_text()
    (project / "workers").mkdir()
    (project / "workers" / "manager.yaml").write_text(shipped)  # word for word
    home.workers.mkdir(parents=True)
    (home.workers / "manager.yaml").write_text(shipped)
    assert tools(guild, "project/manager") == BASE
    assert tools(guild, "home/manager") == BASE
    assert tools(guild, "workers/manager.yaml") == BASE
    assert tools(guild, "shipped/manager") == [*BASE, *MANAGER]
    unclear = guild("run", "manager", "go", "--model", SCRIPT)
    assert unclear.code != 0
    assert "shipped/manager" in unclear.err


@pytest.mark.req("WKR-26")
def test_a_link_to_it_is_not_it(guild: Guild, project: Path, answers: Path) -> None:
    (project / "workers").mkdir()
    (project / "workers" / "boss.yaml").symlink_to(SHIPPED / "manager.yaml")
    (project / "workers" / "manager.yaml").symlink_to(SHIPPED / "manager.yaml")
    assert tools(guild, "project/manager") == BASE
    other = guild("run", "boss", "go", "--model", SCRIPT)
    assert other.code != 0, "its name is not that of its file"


@pytest.mark.req("WKR-26", "WKR-8")
@pytest.mark.parametrize("name", ["manager", "base", "room", "job", "commission", "meeting"])
def test_no_system_toolbox_can_be_named(guild: Guild, project: Path, home: Home, answers: Path, name: str) -> None:
    put(project, "boss", toolboxes=[name])
    home.toolboxes.mkdir(parents=True)
    made = f'toolbox = Toolbox("{name}", own)\n'
    box = f'from guildhall import Toolbox, tool\n@tool\ndef own() -> str:\n    """x"""\n{made}'
    (home.toolboxes / f"{name}.py").write_text(box)
    ran = guild("run", "boss", "go", "--model", SCRIPT)
    assert ran.code == 2, ran
    assert f"{name} is a system toolbox" in ran.err
    assert "boss.yaml:1" in ran.err
    checked = guild("check", "boss")
    assert checked.code != 0


@pytest.mark.req("WKR-26", "WKR-2")
def test_nor_by_a_package(guild: Guild, project: Path, home: Home, answers: Path) -> None:
    put_package(home, "writer", WRITER.replace('toolboxes = ["mail"]', 'toolboxes = ["manager"]'))
    ran = guild("run", "writer", "go", "--model", SCRIPT)
    assert ran.code != 0
    assert "manager is a system toolbox" in ran.err, ran


@pytest.mark.req("WKR-26", "WKR-16")
def test_its_tools_do_not_exist_for_others(guild: Guild, project: Path, answers: Path) -> None:
    put(project, "boss")
    ran = guild("run", "boss", "go", "--model", SCRIPT, "--output", "json")
    entries = [json.loads(line) for line in guild("log", ran.json["run"], "--json").out.splitlines()]
    refused = [entry["data"] for entry in entries if entry["kind"] == "tool_refused"]
    assert [one["tool"] for one in refused] == MANAGER
    assert all(f"Unknown tool '{one['tool']}'" in str(one["result"]) for one in refused)
