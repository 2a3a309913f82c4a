"""Paths of the home, and the root of a project."""

from __future__ import annotations

from pathlib import Path

import pytest

from guildhall.core.paths import Home, project_root


def test_the_home_is_in_the_home_directory_of_the_user_unless_configured(tmp_path: Path):
    assert Home.locate({}).path == Path.home() / ".guild-hall"
    assert Home.locate({"GUILDHALL_HOME": ""}).path == Path.home() / ".guild-hall"
    assert Home.locate({"GUILDHALL_HOME": str(tmp_path)}).path == tmp_path
    assert Home.locate({"GUILDHALL_HOME": "~/hall"}).path == Path.home() / "hall"


def test_a_relative_home_is_resolved_in_the_current_folder(project: Path):
    assert Home.locate({"GUILDHALL_HOME": "hall"}).path == project / "hall"


def test_all_paths_of_a_home_are_inside_it(tmp_path: Path):
    home = Home(tmp_path)
    for path in (home.database, home.lock, home.settings, home.workers, home.toolboxes):
        assert path.parent == tmp_path


@pytest.mark.parametrize("marker", ["guildhall.yaml", "workers/x.yaml"])
def test_the_root_of_a_project_contains_its_settings_or_workers(tmp_path: Path, marker: str):
    (tmp_path / marker).parent.mkdir(exist_ok=True)
    (tmp_path / marker).touch()
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    assert project_root(deep) == tmp_path
    assert project_root(tmp_path) == tmp_path


def test_a_folder_without_a_marker_is_its_own_root(tmp_path: Path):
    assert project_root(tmp_path) == tmp_path


def test_a_file_named_workers_and_a_folder_named_like_the_settings_are_not_markers(tmp_path: Path):
    (tmp_path / "workers").touch()
    (tmp_path / "guildhall.yaml").mkdir()
    deep = tmp_path / "a"
    deep.mkdir()
    assert project_root(deep) == deep


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_the_search_ends_at_the_top_of_a_checkout(tmp_path: Path, kind: str):
    (tmp_path / "workers").mkdir()
    checkout = tmp_path / "checkout"
    deep = checkout / "a"
    deep.mkdir(parents=True)
    (checkout / ".git").mkdir() if kind == "folder" else (checkout / ".git").touch()  # a worktree has a file
    assert project_root(deep) == deep
    (checkout / "workers").mkdir()
    assert project_root(deep) == checkout


def test_the_search_ends_at_the_home_directory_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "workers").mkdir()
    deep = tmp_path / "user" / "a"
    deep.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    assert project_root(deep) == deep
