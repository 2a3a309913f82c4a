"""What is trusted with a member: all of its folder but what it writes itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from guildhall.core.errors import NotTrusted, ToolUnavailable
from guildhall.members.registry import MemberRegistry, member_code, trusted_code
from guildhall.workers.code_trust import Trust
from guildhall.workers.model import Pin
from tests.members.member_folders import put_member

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.paths import Home
    from guildhall.members.model import Member


def pinned(member: Member) -> Trust:
    return Trust({f.path: Pin(path=f.path, digest=f.digest, trusted_at="now") for f in member_code(member).files})


def test_a_member_of_a_project_runs_only_with_trusted_files(project: Path, home: Home):
    folder = put_member(project, "ant")
    member = MemberRegistry(project, home).find("ant")
    with pytest.raises(NotTrusted, match=r"server\.py \(not trusted yet\)"):
        trusted_code(Trust({}), member)
    trust = pinned(member)
    trusted_code(trust, member)
    (folder / "jobs" / "j").mkdir(parents=True)
    (folder / "jobs" / "j" / "meta.json").write_text("{}")
    (folder / "memory").mkdir()
    (folder / "memory" / "a.md").write_text("x")
    (folder / ".guild").mkdir()
    (folder / ".guild" / "hall.db").write_bytes(b"x")
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "server.pyc").write_bytes(b"x")
    trusted_code(trust, member)  # what it writes itself is not asked about
    (folder / "helper.py").write_text("x = 1")
    with pytest.raises(NotTrusted, match=r"helper\.py \(not trusted yet\)"):
        trusted_code(trust, member)
    (folder / "helper.py").unlink()
    (folder / "server.py").write_text("import os")
    with pytest.raises(NotTrusted, match=r"server\.py \(changed since you trusted it\)"):
        trusted_code(trust, member)


@pytest.mark.parametrize("place", ["toolboxes/x.py", "workers/x.yaml", "config.yaml", "guild-members/y/server.py"])
def test_settings_of_the_member_s_hall_need_trust(project: Path, home: Home, place: str):
    folder = put_member(project, "ant")
    member = MemberRegistry(project, home).find("ant")
    trust = pinned(member)
    (folder / ".guild" / place).parent.mkdir(parents=True)
    (folder / ".guild" / place).write_text("x")
    with pytest.raises(NotTrusted, match="not trusted yet"):
        trusted_code(trust, member)


def test_a_member_of_the_home_needs_no_trust(project: Path, home: Home):
    """Check that a member of the home needs no trust, but the same member in a project does."""
    put_member(home.path, "ant")
    put_member(project, "bee")
    roster = MemberRegistry(project, home)
    trusted_code(Trust({}), roster.find("ant"))
    with pytest.raises(NotTrusted):
        trusted_code(Trust({}), roster.find("bee"))


def test_unreadable_code_is_refused(project: Path, home: Home, tmp_path: Path):
    folder = put_member(project, "ant")
    member = MemberRegistry(project, home).find("ant")
    (folder / "lib").symlink_to(tmp_path)
    with pytest.raises(ToolUnavailable, match="a link to a folder"):
        member_code(member)
    (folder / "lib").unlink()
    (folder / "passwd").symlink_to("/etc/passwd")
    with pytest.raises(ToolUnavailable, match="outside of the project"):
        member_code(member)
    (folder / "passwd").unlink()
    (folder / "many").mkdir()
    for number in range(501):
        (folder / "many" / str(number)).touch()
    with pytest.raises(ToolUnavailable, match="more than 500 files"):
        member_code(member)
