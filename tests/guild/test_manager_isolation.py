"""Manager isolation: only the shipped manager has its toolbox, and only when it works for the user."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.core.paths import Home
from guildhall.workers.registry import SHIPPED
from tests.guild.packages import WRITER, write_package
from tests.guild.test_toolbox_resolution import ARTIFACTS, BASE, CONTEXT, FREE, MANAGER
from tests.guild.worker_contexts import WorkerContexts

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Guild

SCRIPT = "script:answers.yaml"


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> WorkerContexts:
    """Return contexts in which the shipped manager is run instead of `smith`."""
    folder = tmp_path_factory.mktemp("contexts")
    contexts = WorkerContexts.create(folder, Home(folder / "home"))
    contexts.write_workers()
    model = {"model": "script:script.yaml"}
    call = {"call": "worker_call", "with": {"worker": "shipped/manager", "input_data": "Go."}}
    team = {"context": {"documentOwner": "none"}, "kickoff": "@smith go"}
    files = {
        "workers/caller.yaml": {"name": "caller", "instructions": "x", **model, "allow_workers": ["shipped/manager"]},
        "script.yaml": {"workers": {"caller": [[call, {"say": "called"}]], "*": [[{"say": "done"}]]}, "repeat": True},
        "team.yaml": {**team, "agents": {"smith": {"worker": "shipped/manager", **model}}},
    }
    for name, text in files.items():
        (contexts.repo.path / name).write_text(json.dumps(text))
    return contexts


@pytest.mark.req("WKR-26", "WKR-25", "WKR-8")
@pytest.mark.parametrize("context", ["run", "meeting", "called", "room", "job", "commission"])
def test_the_manager_has_its_toolbox_in_runs_and_meetings_only(contexts: WorkerContexts, context: str) -> None:
    """Check also a call, a room, a job and a commission, where the manager lacks its toolbox."""
    shown = contexts.tools_in(context, worker="shipped/manager")
    own = MANAGER if context in ("run", "meeting") else []
    context_tools = CONTEXT[context]
    base = [name for name in [*ARTIFACTS, *own, *BASE] if name not in context_tools]
    if context == "job":
        base.remove("memory_write")  # it has store_memory
    assert shown == [*FREE.get(context, []), *context_tools, *base]


def write_worker(project: Path, name: str, **fields: Any) -> None:
    (project / "workers").mkdir(exist_ok=True)
    (project / "workers" / f"{name}.yaml").write_text(json.dumps({"name": name, "instructions": "You lead.", **fields}))


def run_and_list_tools(guild: Guild, worker: str) -> list[str]:
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
def test_a_copy_of_the_manager_has_no_manager_toolbox(guild: Guild, project: Path, home: Home, answers: Path) -> None:
    shipped = (SHIPPED / "manager.yaml").read_text()
    (project / "workers").mkdir()
    (project / "workers" / "manager.yaml").write_text(shipped)  # an exact copy
    home.workers.mkdir(parents=True)
    (home.workers / "manager.yaml").write_text(shipped)
    assert run_and_list_tools(guild, "project/manager") == BASE
    assert run_and_list_tools(guild, "home/manager") == BASE
    assert run_and_list_tools(guild, "workers/manager.yaml") == BASE
    assert run_and_list_tools(guild, "shipped/manager") == [*MANAGER, *BASE]
    unclear = guild("run", "manager", "go", "--model", SCRIPT)
    assert unclear.code != 0
    assert "shipped/manager" in unclear.err


@pytest.mark.req("WKR-26")
def test_a_link_to_the_manager_has_no_manager_toolbox(guild: Guild, project: Path, answers: Path) -> None:
    (project / "workers").mkdir()
    (project / "workers" / "boss.yaml").symlink_to(SHIPPED / "manager.yaml")
    (project / "workers" / "manager.yaml").symlink_to(SHIPPED / "manager.yaml")
    assert run_and_list_tools(guild, "project/manager") == BASE
    other = guild("run", "boss", "go", "--model", SCRIPT)
    assert other.code != 0, "the name differs from the file name"


@pytest.mark.req("WKR-26", "WKR-8")
@pytest.mark.parametrize("name", ["manager", "base", "room", "job", "commission", "meeting"])
def test_a_worker_cannot_name_a_toolbox_of_the_hall(
    guild: Guild, project: Path, home: Home, answers: Path, name: str
) -> None:
    write_worker(project, "boss", toolboxes=[name])
    home.toolboxes.mkdir(parents=True)
    made = f'toolbox = Toolbox("{name}", own)\n'
    box = f'from guildhall import Toolbox, tool\n@tool\ndef own() -> str:\n    """x"""\n{made}'
    (home.toolboxes / f"{name}.py").write_text(box)
    ran = guild("run", "boss", "go", "--model", SCRIPT)
    assert ran.code == 2, ran
    assert f"'{name}' is a system toolbox" in ran.err
    assert "boss.yaml:1" in ran.err
    checked = guild("check", "boss")
    assert checked.code != 0


@pytest.mark.req("WKR-26", "WKR-2")
def test_a_package_cannot_name_a_toolbox_of_the_hall(guild: Guild, project: Path, home: Home, answers: Path) -> None:
    write_package(home, "writer", WRITER.replace('toolboxes = ["mail"]', 'toolboxes = ["manager"]'))
    ran = guild("run", "writer", "go", "--model", SCRIPT)
    assert ran.code != 0
    assert "'manager' is a system toolbox" in ran.err, ran


@pytest.mark.req("WKR-26", "WKR-16")
def test_manager_tools_are_unknown_to_other_workers(guild: Guild, project: Path, answers: Path) -> None:
    write_worker(project, "boss")
    ran = guild("run", "boss", "go", "--model", SCRIPT, "--output", "json")
    entries = [json.loads(line) for line in guild("log", ran.json["run"], "--json").out.splitlines()]
    refused = [entry["data"] for entry in entries if entry["kind"] == "tool_refused"]
    assert [one["tool"] for one in refused] == MANAGER
    assert all(f"Unknown tool '{one['tool']}'" in str(one["result"]) for one in refused)
