"""A name stands for one repository: another one of the same name has nothing of what was done for it."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from guildhall.projects.commissions.model import Draft
from tests.projects.commissions.harness import CommissionProject, say, submit
from tests.projects.conftest import repository

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.paths import Home
    from tests.projects.conftest import Repository

_PRIVATE = "PRIVATE OF CLIENT A"


@pytest.fixture
def harness(tmp_path: Path, home: Home, monkeypatch: pytest.MonkeyPatch) -> CommissionProject:
    made = CommissionProject.at(tmp_path, home)
    monkeypatch.chdir(made.repo.path)
    made.script([submit(_PRIVATE), say()])
    return made


def _other(folder: Path) -> Repository:
    return repository(folder / "two" / "shop", {"README.md": "Another shop\n"})


async def _done(shop: CommissionProject) -> str:
    return (await shop.run_commission()).id


async def _listed(shop: CommissionProject) -> list[str]:
    return [one.id for one in await shop.commissions.list_commissions("shop")]


def _on_branch(repo: Repository) -> str:
    there = repo.git("for-each-ref", "refs/heads/claude/main")
    return repo.git("ls-tree", "-r", "--name-only", "claude/main") if there else ""


@pytest.mark.req("SYS-35")
@pytest.mark.parametrize("by_hand", [False, True])
def test_another_repository_of_the_name_has_nothing_of_the_first(
    harness: CommissionProject, tmp_path: Path, by_hand: bool
) -> None:
    first, id = harness.repo, harness.run_in_hall(_done)
    other = _other(tmp_path)
    settings = harness.home.settings

    async def changed(shop: CommissionProject) -> None:
        if by_hand:
            settings.write_text(settings.read_text().replace(str(first.path), str(other.path)))
            return
        await shop.client.projects.remove("shop")
        await shop.client.projects.add(other.path)

    async def begun(shop: CommissionProject) -> list[str]:
        await shop.commissions.drain()
        return await _listed(shop)

    harness.run_in_hall(changed)
    assert harness.run_in_hall(begun, recover=True) == []
    assert id not in _on_branch(other)
    assert _PRIVATE not in other.git("log", "--all", "-p")
    # the first one again: its records are its own still
    settings.write_text(settings.read_text().replace(str(other.path), str(first.path)))
    assert harness.run_in_hall(begun, recover=True) == [id]


@pytest.mark.req("SYS-35")
def test_a_repository_keeps_its_records_where_it_is_moved_or_registered_again(
    harness: CommissionProject, tmp_path: Path
) -> None:
    id = harness.run_in_hall(_done)

    async def moved(shop: CommissionProject) -> list[str]:
        await shop.client.projects.remove("shop")
        assert await _listed(shop) == []
        assert [one.id for one in await shop.commissions.list_commissions()] == [id]
        assert "unknown project" in (await shop.commissions.details(id)).warnings[0]
        shop.repo.path.rename(tmp_path / "elsewhere")
        await shop.client.projects.add(tmp_path / "elsewhere", name="store")
        return [one.id for one in await shop.commissions.list_commissions("store")]

    assert harness.run_in_hall(moved) == [id]


@pytest.mark.req("SYS-35")
def test_a_clone_in_the_place_of_the_repository_is_the_same_one_and_an_empty_one_is_not(
    harness: CommissionProject, tmp_path: Path
) -> None:
    repo, id = harness.repo, harness.run_in_hall(_done)
    shutil.copytree(repo.path, tmp_path / "copy")
    shutil.rmtree(repo.path)
    repo.git("clone", "-q", str(tmp_path / "copy"), str(repo.path), cwd=tmp_path)
    harness.worker()
    assert harness.run_in_hall(_listed, recover=True) == [id]
    shutil.rmtree(repo.path)
    repository(repo.path).commit({"README.md": "New\n"}, "Start")
    harness.worker()
    assert harness.run_in_hall(_listed, recover=True) == []


@pytest.mark.req("SYS-35")
def test_a_copy_of_a_repository_is_another_one_while_the_first_is_there(
    harness: CommissionProject, tmp_path: Path
) -> None:
    copy = tmp_path / "bshop"

    async def copied(shop: CommissionProject) -> None:
        await shop.create_commission(title="Of the first")
        shutil.copytree(shop.repo.path, copy)
        await shop.client.projects.add(copy)
        draft = Draft(title="Of the copy", worker="smith", prompt="Forge.")
        made = await shop.commissions.create(shop.hall.projects.get("bshop"), draft, shop.frame)
        await shop.commissions.abandon(made.id)
        await shop.client.projects.remove("bshop")

    async def again(shop: CommissionProject) -> list[str]:
        for one in await shop.commissions.list_commissions("shop"):
            await shop.commissions.abandon(one.id)
        await shop.client.projects.remove("shop")
        await shop.client.projects.add(shop.repo.path)
        return [one.title for one in await shop.commissions.list_commissions("shop")]

    harness.run_in_hall(copied)
    assert harness.run_in_hall(again) == ["Of the first"]
    ids = [(folder / ".git/guildhall-id").read_text() for folder in (harness.repo.path, copy)]
    assert ids[0] != ids[1]
    # Where the first is gone, the copy has taken its place, as one that was moved.
    shutil.rmtree(harness.repo.path)
    (copy / ".git/guildhall-id").write_text(ids[0])

    async def moved(shop: CommissionProject) -> list[str]:
        assert (await shop.client.projects.add(copy)).name == "shop"
        return [one.title for one in await shop.commissions.list_commissions("shop")]

    assert harness.run_in_hall(moved) == ["Of the first"]


@pytest.mark.parametrize("mark", [b"", b"\xff\x00", b"[]", b'{"id": "../../x", "path": "/", "commit": ""}'])
def test_a_mark_that_is_no_mark_stops_nothing(harness: CommissionProject, mark: bytes) -> None:
    harness.run_in_hall(_done)
    (harness.home.path / "projects/shop/repository.json").write_bytes(mark)
    (harness.repo.path / ".git/guildhall-id").write_bytes(mark)
    harness.run_in_hall(_listed, recover=True)
    assert not [one for one in (harness.home.path / "projects").iterdir() if "/" in one.name]
