"""Where workers are found."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from guildhall.core.errors import Conflict, InvalidFile, NotFound
from guildhall.workers.model import Lock
from guildhall.workers.registry import SHIPPED, Registry

if TYPE_CHECKING:
    from guildhall.core.paths import Home
    from tests.workers.conftest import Write

TEXT = "instructions: x\n"


@pytest.fixture
def shipped(tmp_path: Path) -> Path:
    folder = tmp_path / "package"
    folder.mkdir()
    (folder / "common.yaml").write_text(TEXT)
    return folder


@pytest.fixture
def registry(project: Path, home: Home, shipped: Path) -> Registry:
    home.workers.mkdir(parents=True)
    return Registry(project, home, shipped=shipped)


def test_a_name_is_found_in_each_place(registry: Registry, write: Write, home: Home, project: Path):
    write("workers/mine.yaml", TEXT)
    write("workers/generated/made.yml", TEXT)
    (home.workers / "own.json").write_text('{"instructions": "x"}')
    found = {name: registry.find(name, project) for name in ("mine", "made", "own", "common")}
    assert {name: worker.scope for name, worker in found.items()} == {
        "mine": "project",
        "made": "project",
        "own": "home",
        "common": "shipped",
    }
    assert registry.find("project/mine", project) == found["mine"]
    assert registry.find("home/own", project) == found["own"]
    assert registry.find("shipped/common", project) == found["common"]


def test_a_path_is_found_from_where_one_is(registry: Registry, write: Write, home: Home, project: Path, shipped: Path):
    loose = write("loose/w.yaml", TEXT)
    assert registry.find("loose/w.yaml", project).path == loose
    assert registry.find("./w.yaml", project / "loose").path == loose
    assert registry.find(str(loose), Path("/")).scope == "project"
    (home.workers / "own.yaml").write_text(TEXT)
    assert registry.find(str(home.workers / "own.yaml"), project).scope == "home"
    assert registry.find(str(shipped / "common.yaml"), project).scope == "shipped"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("evaluater", "Did you mean 'evaluator'?"),
        ("home/evaluator", "Create one: guild worker new NAME"),
        ("team/evaluator", "one of project/evaluator, home/evaluator, package/evaluator, shipped/evaluator"),
        ("workers/evaluatr.yaml", "Did you mean 'evaluator.yaml'?"),
        ("nowhere/x.yaml", None),
        ("", "Known: common, evaluator."),
        ("../evaluator", "Use the name alone"),
    ],
)
def test_an_unknown_name_suggests_the_nearest(
    registry: Registry, write: Write, project: Path, name: str, hint: str | None
):
    write("workers/evaluator.yaml", TEXT)
    with pytest.raises(NotFound) as caught:
        registry.find(name, project)
    assert (hint or "") in (caught.value.hint or "")


def test_a_name_found_twice_must_be_qualified(registry: Registry, write: Write, home: Home, project: Path):
    mine = write("workers/w.yaml", "instructions: project's")
    own = home.workers / "w.yaml"
    own.write_text("instructions: home's")
    with pytest.raises(Conflict) as caught:
        registry.find("w", project)
    assert str(mine) in caught.value.message
    assert str(own) in caught.value.message
    assert caught.value.hint == "Use project/w or home/w."
    assert registry.find("home/w", project).instructions == "home's"


def test_two_files_for_one_worker_in_one_place(registry: Registry, write: Write, project: Path):
    write("workers/w.yaml", TEXT)
    write("workers/generated/w.yaml", TEXT)
    for name in ("w", "project/w"):
        with pytest.raises(InvalidFile, match="2 files define the worker"):
            registry.find(name, project)
    assert registry.find("workers/w.yaml", project).name == "w"


def test_a_listing_shows_the_wrong_ones_with_what_is_wrong(registry: Registry, write: Write, project: Path):
    write("workers/a.yaml", "instructions: x\ndescription: first\nstatus: draft\nlocked: true")
    broken = write("workers/b.yaml", "instructons: x")
    write("workers/c.json", "{")
    write("workers/notes.txt", "no worker")
    write("workers/.hidden.yaml", "no worker")
    (project / "workers/folder.yaml").mkdir()
    first, second, third, shipped = registry.listings()
    assert (first.name, first.status, first.locked, first.description) == ("a", "draft", True, "first")
    assert (second.name, second.status) == ("b", None)
    assert (second.error or "").startswith(f"{broken}:1: instructons: unknown field")
    assert "not JSON" in (third.error or "")
    assert (shipped.name, shipped.scope, shipped.error) == ("common", "shipped", None)
    assert shipped.as_dict()["path"] == str(shipped.path)
    with pytest.raises(InvalidFile, match="instructons"):
        registry.find("b", project)


def test_locks_are_seen_by_look_up_and_listing(write: Write, project: Path, home: Home):
    path = write("workers/w.yaml", TEXT)
    broken = write("workers/x.yaml", "broken")
    locks = {p: Lock(path=p, digest="d", locked_at="now") for p in (path, broken)}
    registry = Registry(project, home, locks=locks)
    worker = registry.find("w", project)
    assert (worker.is_locked, worker.is_changed) == (True, True)
    assert [one.locked for one in registry.listings() if one.scope == "project"] == [True, True]


def test_a_lock_holds_through_links(write: Write, project: Path, home: Home, tmp_path: Path):
    path = write("workers/w.yaml", TEXT)
    locks = {path: Lock(path=path, digest="d", locked_at="now")}
    (tmp_path / "door").symlink_to(project)
    assert Registry(tmp_path / "door", home, locks=locks).find("w", project).is_locked
    linked = write("other/keep", "").parent / "w.yaml"
    linked.symlink_to(path)
    assert Registry(project, home, locks=locks).find("other/w.yaml", project).is_locked


def test_a_folder_with_two_roles_is_seen_once(home: Home):
    home.workers.mkdir(parents=True)
    (home.workers / "w.yaml").write_text(TEXT)
    registry = Registry(home.path, home)
    assert registry.find("w", home.path).name == "w"
    assert [one.name for one in registry.listings() if one.scope != "shipped"] == ["w"]


def test_the_shipped_workers_are_in_order(project: Path, home: Home):
    listed = Registry(project, home).listings()
    assert [one.name for one in listed] == sorted(path.stem for path in SHIPPED.glob("*.yaml"))
    for one in listed:
        assert one.error is None
        assert Registry(project, home).find(one.name, project).scope == "shipped"
