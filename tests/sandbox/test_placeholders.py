"""Names are held while programs run, by as many as need them, and nothing is left of it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from guildhall.core.errors import ToolUnavailable
from guildhall.core.paths import is_placeholder, project_root
from guildhall.sandbox.mounts import hold_placeholders


def test_they_are_there_for_the_length_of_a_block(tmp_path: Path) -> None:
    folder, file = tmp_path / "workers", tmp_path / "guildhall.yaml"
    with hold_placeholders((folder, file)) as lost:
        assert not lost
        assert folder.is_dir()
        assert file.read_text() == ""
        assert is_placeholder(folder)
        assert is_placeholder(file)
    assert list(tmp_path.iterdir()) == []


def test_the_last_one_takes_them_away(tmp_path: Path) -> None:
    folder = tmp_path / "workers"
    first, second = hold_placeholders((folder,)), hold_placeholders((folder,))
    first.__enter__()
    with second:
        first.__exit__(None, None, None)
        assert is_placeholder(folder), "the second relies on it"
    assert not folder.exists()


def test_what_a_crash_left_behind_is_taken_away_by_the_next(tmp_path: Path) -> None:
    (tmp_path / "workers").mkdir(stat.S_ISVTX | 0o755)
    with hold_placeholders((tmp_path / "workers",)):
        pass
    assert list(tmp_path.iterdir()) == []


def test_what_people_make_stays(tmp_path: Path) -> None:
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
    assert not filled.stat().st_mode & stat.S_ISVTX, "it is nobody's stand-in any more"
    assert (settings.read_text(), replaced.read_text()) == ("model: x", "model: y")


def test_an_error_in_the_block_takes_them_away_too(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), hold_placeholders((tmp_path / "workers",)):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_a_place_where_nothing_can_be_made_is_said(tmp_path: Path) -> None:
    nowhere = Path("/sys/workers")
    with hold_placeholders((tmp_path / "fine", nowhere)) as lost:
        assert lost == {nowhere}
        assert is_placeholder(tmp_path / "fine")


def test_a_link_or_a_name_too_long_is_refused(tmp_path: Path) -> None:
    (tmp_path / "workers").symlink_to("elsewhere")
    for path in (tmp_path / "workers", tmp_path / ("x" * 300)):
        with pytest.raises(ToolUnavailable, match="cannot protect"), hold_placeholders((tmp_path / "first", path)):
            pytest.fail("it was held")
    assert [path.name for path in tmp_path.iterdir()] == ["workers"], "the first was taken away again"


def test_a_stand_in_makes_no_project(tmp_path: Path) -> None:
    below = tmp_path / "project" / "below"
    below.mkdir(parents=True)
    (tmp_path / "project" / ".git").mkdir()
    with hold_placeholders((tmp_path / "project" / "workers", tmp_path / "project" / "guildhall.yaml")):
        assert project_root(below) == below
    os.mkdir(tmp_path / "project" / "workers")  # noqa: PTH102
    assert project_root(below) == tmp_path / "project"
