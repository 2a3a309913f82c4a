"""Projects in config.yaml: read, put in, taken out, everything else left as it was written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from guildhall.core.errors import Conflict, NotFound
from guildhall.projects.registry import Projects

if TYPE_CHECKING:
    from guildhall.core.paths import Home
    from tests.projects.conftest import Repository

CONFIG = """\
# mine
model: "script:answers.yaml"   # quoted
env: [A,   B]

projects:   # what I work on
  # the old one
  old:
    path: /nowhere/old

  # trailing words
budget: 3
"""


@pytest.mark.req("SYS-35")
def test_put_in_and_taken_out_nothing_else_changes(home: Home, repo: Repository) -> None:
    home.path.mkdir(parents=True)
    home.settings.write_text(CONFIG)
    projects = Projects(home)
    added = projects.add(repo.path)
    assert (added.name, added.path, added.branch) == ("shop", repo.path, "main")
    lines = [line for line in home.settings.read_text().splitlines() if line not in CONFIG.splitlines()]
    assert lines == ["  shop:", f'    path: "{repo.path}"', "    branch: main"]
    assert projects.find_at(repo.path / "src") == added
    assert projects.find_at(repo.path.parent) is None
    with pytest.raises(Conflict, match="already"):
        projects.add(repo.path, name="other")
    projects.remove("shop")
    assert home.settings.read_text() == CONFIG
    with pytest.raises(NotFound, match="unknown project 'shop'"):
        projects.remove("shop")
    assert projects.check("old")[0].message == "folder not found: /nowhere/old"


def test_the_first_one_makes_the_file(home: Home, repo: Repository) -> None:
    projects = Projects(home)
    projects.add(repo.path, name="first")
    assert home.settings.read_text() == f'projects:\n  first:\n    path: "{repo.path}"\n    branch: main\n'
    assert [project.name for project in projects.all()] == ["first"]
    projects.remove("first")
    assert projects.all() == []
