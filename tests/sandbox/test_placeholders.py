"""Placeholders: they protect names while programs run, can be shared, and leave nothing behind."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from guildhall.core.errors import ToolUnavailable
from guildhall.core.paths import is_placeholder, project_root
from guildhall.sandbox.mounts import hold_placeholders


def test_placeholders_exist_during_the_block(tmp_path: Path) -> None:
    folder, file = tmp_path / "workers", tmp_path / "guildhall.yaml"
    with hold_placeholders((folder, file)) as unprotected:
        assert not unprotected
        assert folder.is_dir()
        assert file.read_text() == ""
        assert is_placeholder(folder)
        assert is_placeholder(file)
    assert list(tmp_path.iterdir()) == []


def test_the_last_holder_removes_the_placeholders(tmp_path: Path) -> None:
    folder = tmp_path / "workers"
    first, second = hold_placeholders((folder,)), hold_placeholders((folder,))
    first.__enter__()
    with second:
        first.__exit__(None, None, None)
        assert is_placeholder(folder), "the second holder needs it"
    assert not folder.exists()


def test_placeholders_of_a_crashed_process_are_removed_by_the_next(tmp_path: Path) -> None:
    (tmp_path / "workers").mkdir(stat.S_ISVTX | 0o755)
    with hold_placeholders((tmp_path / "workers",)):
        pass
    assert list(tmp_path.iterdir()) == []


def test_files_of_the_user_are_kept(tmp_path: Path) -> None:
    own, filled = tmp_path / "own", tmp_path / "filled"
    settings, replaced = tmp_path / "guildhall.yaml", tmp_path / "other.yaml"
    own.mkdir()
    with hold_placeholders((own, filled, settings, replaced)):
        (filled / "clerk.yaml").write_text("clerk")
        settings.write_text("model: x")
        (tmp_path / "new").write_text("model: y")
        (tmp_path / "new").replace(replaced)
    assert own.is_dir()
    assert (filled / "clerk.yaml").read_text() == "clerk"
    assert not filled.stat().st_mode & stat.S_ISVTX, "it is no longer a placeholder"
    assert (settings.read_text(), replaced.read_text()) == ("model: x", "model: y")


def test_placeholders_are_removed_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), hold_placeholders((tmp_path / "workers",)):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_names_that_cannot_be_created_are_returned(tmp_path: Path) -> None:
    nowhere = Path("/sys/workers")
    with hold_placeholders((tmp_path / "fine", nowhere)) as unprotected:
        assert unprotected == {nowhere}
        assert is_placeholder(tmp_path / "fine")


def test_a_link_or_a_name_too_long_is_refused(tmp_path: Path) -> None:
    (tmp_path / "workers").symlink_to("elsewhere")
    for path in (tmp_path / "workers", tmp_path / ("x" * 300)):
        with pytest.raises(ToolUnavailable, match="cannot protect"), hold_placeholders((tmp_path / "first", path)):
            pytest.fail("not refused")
    assert [path.name for path in tmp_path.iterdir()] == ["workers"], "the first placeholder was removed"


def test_a_placeholder_does_not_mark_a_project(tmp_path: Path) -> None:
    below = tmp_path / "project" / "below"
    below.mkdir(parents=True)
    (tmp_path / "project" / ".git").mkdir()
    with hold_placeholders((tmp_path / "project" / "workers", tmp_path / "project" / "guildhall.yaml")):
        assert project_root(below) == below
    os.mkdir(tmp_path / "project" / "workers")  # noqa: PTH102
    assert project_root(below) == tmp_path / "project"
