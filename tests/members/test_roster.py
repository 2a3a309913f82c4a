"""The roster: which members there are, in which order, and what is wrong with the others."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from guildhall.core.errors import Conflict, InvalidFile, NotFound
from guildhall.members.registry import MemberRegistry
from tests.members.member_folders import put_member

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.paths import Home


def test_members_are_found_in_the_project_then_in_the_home(project: Path, home: Home):
    put_member(project, "zoo")
    put_member(project, "ant")
    put_member(home.path, "bee", work=False)
    (project / "guild-members" / "notes").mkdir()  # no manifest: no member
    (project / "guild-members" / "README.md").write_text("x")
    put_member(project, ".hidden", name="hidden")
    roster = MemberRegistry(project, home)
    assert [(m.name, m.scope, m.accepts_jobs) for m in roster.members()] == [
        ("ant", "project", True),
        ("zoo", "project", True),
        ("bee", "home", False),
    ]
    assert roster.find("bee").capabilities == ()
    assert roster.find("home/bee").name == "bee"


def test_a_project_can_have_no_members(project: Path, home: Home):
    assert MemberRegistry(project, home).members() == []
    with pytest.raises(NotFound, match="guild member new"):
        MemberRegistry(project, home).find("bee")


@pytest.mark.req("WD-2")
def test_an_invalid_manifest_is_listed_with_its_error(project: Path, home: Home):
    put_member(project, "ant")
    put_member(project, "bad", capabilites=["worker"])
    (put_member(project, "torn") / "guild-member.json").write_text("{")
    (put_member(project, "dir") / "guild-member.json").unlink()
    (project / "guild-members" / "dir" / "guild-member.json").mkdir()
    listed = {member.name: member for member in MemberRegistry(project, home).members()}
    assert listed["ant"].error is None
    assert "guild-member.json:18: capabilites: unknown field" in (listed["bad"].error or "")
    assert "not JSON" in (listed["torn"].error or "")
    assert "not a regular file" in (listed["dir"].error or "")
    with pytest.raises(InvalidFile, match=r"invalid member .*capabilites"):
        MemberRegistry(project, home).find("bad")


def test_a_duplicate_name_must_be_qualified(project: Path, home: Home):
    put_member(project, "ant")
    put_member(home.path, "ant")
    roster = MemberRegistry(project, home)
    with pytest.raises(Conflict, match="project/ant or home/ant"):
        roster.find("ant")
    assert roster.find("home/ant").scope == "home"
    put_member(project, "copy", name="ant")
    with pytest.raises(InvalidFile, match="2 members have the name 'project/ant'"):
        roster.find("project/ant")


def test_an_unknown_name_gets_a_suggestion(project: Path, home: Home):
    put_member(project, "researcher")
    with pytest.raises(NotFound, match="Did you mean 'researcher'"):
        MemberRegistry(project, home).find("reseacher")
    for odd in ("../x", "shipped/researcher", "", "/", "a\0b", "x" * 5000):
        with pytest.raises(NotFound):
            MemberRegistry(project, home).find(odd)


def test_a_link_out_of_the_project_is_not_a_member(project: Path, home: Home, tmp_path: Path):
    put_member(tmp_path / "elsewhere", "ant")
    (project / "guild-members").mkdir()
    (project / "guild-members" / "ant").symlink_to(tmp_path / "elsewhere" / "guild-members" / "ant")
    (project / "guild-members" / "loop").symlink_to("loop")
    (found,) = MemberRegistry(project, home).members()
    assert "a link out of the project" in (found.error or "")


def test_a_home_that_is_the_project_is_listed_once(home: Home):
    put_member(home.path, "ant")
    assert [member.scope for member in MemberRegistry(home.path, home).members()] == ["home"]


def test_a_member_is_shown_as_json(project: Path, home: Home):
    put_member(project, "ant")
    told = json.loads(json.dumps(MemberRegistry(project, home).find("ant").as_dict()))
    assert told["displayName"] == "Ant"
    assert told["capabilities"] == ["worker"]
