"""Edits change one field and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from guildhall.core import yaml
from guildhall.core.errors import Conflict, GuildError
from guildhall.workers.lifecycle import set_field

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("# a\nname: w # b\nstatus: draft # c\n# d\n", "# a\nname: w # b\nstatus: active # c\n# d\n"),
        ("name: w\nstatus:   'draft'   # c\nx: 1", "name: w\nstatus:   active   # c\nx: 1"),
        (
            "name: w # b\ntext: |\n  hi\n\n  # no comment\n",
            "name: w # b\nstatus: active\ntext: |\n  hi\n\n  # no comment\n",
        ),
        ("# top\n\ntext: |\n  hi\n", "# top\n\nstatus: active\ntext: |\n  hi\n"),
        ("a: 1\nname: w", "status: active\na: 1\nname: w"),
        ("---\nname: w\n...\n", "---\nname: w\nstatus: active\n...\n"),
        ("  name: w\n  a: 1\n", "  name: w\n  status: active\n  a: 1\n"),
        ("{}\n", "status: active\n"),
        ("a: &x 1\nb: &x 2\nname: w\n", "a: &x 1\nb: &x 2\nname: w\nstatus: active\n"),
        ("name: w\r\na: 1\r\n", "name: w\r\nstatus: active\r\na: 1\r\n"),
        ("{name: w, status: draft} # c\n", "{name: w, status: active} # c\n"),
        ("{name: w} # c\n", "{status: active, name: w} # c\n"),
        ("name: w\nstatus:\na: 1 # c\n", "name: w\nstatus: active\na: 1 # c\n"),
        ("name: >\n  w\na: 1\n", "name: >\n  w\na: 1\nstatus: active\n"),
        ("a: [x,   y] # c\nname: w\nb: 'q'\n", "a: [x,   y] # c\nname: w\nstatus: active\nb: 'q'\n"),
    ],
)
def test_yaml_keeps_comments_order_and_spacing(tmp_path: Path, before: str, after: str):
    path = tmp_path / "w.yaml"
    path.write_bytes(before.encode())
    set_field(path, "status", "active")
    assert path.read_bytes().decode() == after


def test_what_cannot_be_changed_in_place_keeps_its_comments_too(tmp_path: Path):
    path = tmp_path / "w.yaml"
    path.write_text("# top\n? name\n: w\n? a\n: 1 # c\n")
    set_field(path, "locked", True)
    assert yaml.read(path).data == {"name": "w", "a": 1, "locked": True}
    assert "# top" in path.read_text()
    assert "# c" in path.read_text()


def test_what_cannot_be_changed_safely_stays(tmp_path: Path):
    path = tmp_path / "w.yaml"
    text = "name: w\n"
    path.write_text(text)
    with pytest.raises(Conflict, match=r"cannot change `status` safely in this file\nSet `status: .*` in an editor"):
        set_field(path, "status", "\ud800")  # no file can hold half a character
    assert path.read_text() == text
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            '{\n    "name": "w",\n    "ä": [1]\n}\n',
            '{\n    "name": "w",\n    "ä": [\n        1\n    ],\n    "status": "active"\n}\n',
        ),
        ('{"status": "draft", "a": 1.5}', '{"status": "active", "a": 1.5}'),
        ('{\n\t"status": "draft"\n}', '{\n\t"status": "active"\n}'),
    ],
)
def test_json_keeps_order_and_indentation(tmp_path: Path, before: str, after: str):
    path = tmp_path / "w.json"
    path.write_text(before)
    set_field(path, "status", "active")
    assert path.read_text() == after


def test_mode_mark_and_link_stay(tmp_path: Path):
    path = tmp_path / "w.yaml"
    path.write_bytes(b"\xef\xbb\xbfname: w\n")
    path.chmod(0o640)
    link = tmp_path / "link.yaml"
    link.symlink_to(path)
    set_field(link, "locked", False)
    assert link.is_symlink()
    assert path.read_bytes() == b"\xef\xbb\xbfname: w\nlocked: false\n"
    assert path.stat().st_mode & 0o777 == 0o640


line = st.text(alphabet="abc #:'\"[]{},&*!|>-é", max_size=12)
blocks = st.sampled_from(
    [
        "a: 1 # one\n",
        "# alone\n",
        "\n",
        "b: |\n  text # no comment\n\n",
        "c: [x, y] # list\n",
        "d:\n  e: f # deep\n",
        "g: 'q'\n",
    ]
)


@given(
    st.lists(blocks, unique=True, min_size=1), st.sampled_from(["", "name: w # n\n", "status: draft # s\n"]), st.data()
)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_file_keeps_every_line(tmp_path: Path, parts: list[str], extra: str, data: st.DataObject):
    parts.insert(data.draw(st.integers(0, len(parts))), extra)
    text = "".join(parts)
    path = tmp_path / "w.yaml"
    path.write_text(text)
    before = yaml.read(path).data
    if before is None:
        return
    set_field(path, "status", "active")
    assert yaml.read(path).data == {**before, "status": "active"}
    new = path.read_text().replace("status: active", "status: draft")
    lines = text.splitlines()
    assert new.splitlines() == lines or [one for one in new.splitlines() if one != "status: draft"] == lines


@given(st.lists(line, max_size=6))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_edit_is_right_or_not_made(tmp_path: Path, lines: list[str]):
    path = tmp_path / "w.yaml"
    path.write_text("\n".join(lines))
    try:
        before = yaml.read(path).data
    except GuildError:
        return
    if not isinstance(before, dict):
        return
    text = path.read_text()
    try:
        set_field(path, "status", "active")
    except Conflict:
        assert path.read_text() == text
    else:
        assert yaml.read(path).data == {**before, "status": "active"}
