"""What blocked commissions wait for may come by somebody's commit: the branches that could bring it are watched.

A look is a few questions to the file system, for those projects only of which something is blocked. Git is asked where
an answer is another one than before.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from guildhall.core.errors import GuildError
from guildhall.projects.commissions import records
from guildhall.projects.commissions.waiting import settle
from guildhall.projects.model import INTEGRATION

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.projects.commissions.ground import Ground

_EVERY = 2.0  # seconds
_log = logging.getLogger("guildhall.commissions")


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """How the files were that say where the branches of a project are."""

    paths: tuple[Path, ...]
    marks: tuple[object, ...]

    @staticmethod
    def of(paths: tuple[Path, ...]) -> _Seen:
        return _Seen(paths=paths, marks=tuple(map(_mark, paths)))


class Watch:
    """Looks, for as long as the hall is there."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._seen: dict[str, _Seen] = {}  # by project
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        self._task = asyncio.create_task(self._keep_looking())

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _keep_looking(self) -> None:
        while True:
            await self._ground.clock.sleep(_EVERY)
            try:
                for project in await asyncio.to_thread(self._moved):
                    await settle(self._ground, project)
            except GuildError as error:  # such as config.yaml, which cannot be read for now
                _log.info("%s", error)
            except Exception:  # noqa: BLE001 - the next look may be better
                _log.exception("watching")

    def _moved(self) -> list[str]:
        """The projects in which it has to be looked whether something can begin."""
        names = self._ground.store.read(records.with_blocked)
        before, self._seen = self._seen, {}
        moved: list[str] = []
        for name in names:
            seen = before.get(name)
            if seen is None or seen != _Seen.of(seen.paths):
                seen = _Seen.of(self._paths(name))  # as it was before what follows
                moved.append(name)
            self._seen[name] = seen
        return moved

    def _paths(self, name: str) -> tuple[Path, ...]:
        """All that changes when a branch of a project does, or when the project is another one."""
        projects = self._ground.projects()
        paths = (projects.file,)
        try:
            project = projects.get(name)
            paths = (*paths, project.path / ".git")
            common = self._ground.branches(project).git.common
        except GuildError:  # it cannot be used now: whoever looks at it is told why
            return paths
        branches = [common / "refs" / "heads" / branch for branch in (project.branch, INTEGRATION)]
        return (*paths, *branches, common / "packed-refs", common / "reftable" / "tables.list")


def _mark(path: Path) -> object:
    try:
        found = path.stat()
    except OSError:
        return None
    # A folder changes with all that is put into it, such as the index of a commit that is not made yet.
    return found.st_ino if path.name == ".git" else (found.st_ino, found.st_mtime_ns, found.st_size)
