"""What else a worker has in a worktree: toolboxes of the project, servers, workers that it would write."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from guildhall.core.errors import GuildError
from guildhall.core.request_frame import Frame
from guildhall.hall.services.embedded import open_hall
from guildhall.runs.model import RunRequest
from tests.runs.places import put_script, put_worker

if TYPE_CHECKING:
    from guildhall.core.paths import Home
    from guildhall.projects.git.worktrees import Worktrees
    from guildhall.projects.model import Project
    from tests.conftest import Guild
    from tests.projects.conftest import Repository

BOX = '''
from guildhall import Toolbox, tool

@tool(capabilities={"fs.read"})
def look() -> str:
    """Looks around."""
    from pathlib import Path
    return "the user's: " + Path("src/cart.py").read_text()

toolbox = Toolbox("desk", look)
'''


@pytest.fixture
def frame(repo: Repository, worktrees: Worktrees, shop: Project) -> Frame:
    path = worktrees.check_out(shop, "c-one", "claude/commission/c-one-1", "full")
    (path / "src" / "cart.py").write_text("of the worktree\n")
    return Frame(cwd=repo.path, root=repo.path, worktree=path, env={"PATH": "/usr/bin:/bin"})


async def ran(home: Home, frame: Frame) -> tuple[str, list[str]]:
    hall = await open_hall(home, {"PATH": "/usr/bin:/bin"})
    try:
        events = [event async for event in hall.runs.run(RunRequest(worker="coder", input="go"), frame)]
        run = events[0].run
        told = [
            str(entry.data) for entry in await hall.runs.journal(run) if entry.kind in ("tool_ended", "tool_refused")
        ]
        return str(events[-1].data), told
    finally:
        await hall.close()


def test_a_toolbox_of_the_project_works_on_the_worktree(
    repo: Repository, frame: Frame, home: Home, guild: Guild
) -> None:
    repo.write("toolboxes/desk.py", BOX)
    put_worker(repo.path, "coder", toolboxes=["desk"], tools=["Read"], sandboxes=None, tool_rules=None)
    put_script(repo.path, {"call": "look", "with": {}}, {"say": "done"})
    assert guild("trust", "--yes", cwd=repo.path).code == 0
    ended, told = asyncio.run(ran(home, frame))
    assert "completed" in ended
    assert "of the worktree" in told[0]


def test_no_worker_is_written_into_the_users_folder(repo: Repository, frame: Frame, home: Home) -> None:
    put_worker(repo.path, "coder", sandboxes=None, tool_rules={"worker.create": {"allowed": True}})
    new = {"call": "worker_create", "with": {"name": "mine", "instructions": "Do it."}}
    put_script(repo.path, new, {"say": "done"})
    _, told = asyncio.run(ran(home, frame))
    assert not (repo.path / "workers" / "generated").exists()
    assert any("cannot create a worker from a worktree" in one for one in told), told


@pytest.mark.parametrize("command", [["python3", "tools/server.py"], ["./serve"]])
def test_a_server_of_the_project_is_not_started(
    repo: Repository, frame: Frame, home: Home, guild: Guild, command: list[str]
) -> None:
    """Not trusted: the worker can change the copy in the worktree."""
    for name in ("tools/server.py", "serve"):
        repo.write(name, "#!/bin/sh\n")
        (repo.path / name).chmod(0o755)
    put_worker(repo.path, "coder", sandboxes=None, tool_rules=None, mcp_servers={"own": {"command": command}})
    put_script(repo.path, {"say": "done"})
    assert guild("trust", "--yes", cwd=repo.path).code == 0
    with pytest.raises(GuildError, match="cannot run in a worktree"):
        asyncio.run(ran(home, frame))
