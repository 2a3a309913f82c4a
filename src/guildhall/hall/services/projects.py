"""The service of projects."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from guildhall.core.errors import UsageError
from guildhall.core.ids import is_name
from guildhall.hall.client.interface import Projects

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from guildhall.hall.composition.hall import Hall
    from guildhall.projects.model import Problem, Project, ProjectShown


class ProjectService(Projects):
    def __init__(self, hall: Hall) -> None:
        self._hall = hall

    async def list(self) -> Sequence[ProjectShown]:
        shown = await asyncio.to_thread(self._hall.projects.listed)
        return [replace(one, living=self._hall.living(one.name)) for one in shown]

    async def add(self, path: Path, *, name: str | None = None, branch: str | None = None) -> Project:
        if not path.is_absolute() or "\0" in str(path):
            raise UsageError("path: give the whole path of the repository")
        return await asyncio.to_thread(self._hall.add_project, path, name, branch)

    async def remove(self, name: str) -> ProjectShown:
        self._hall.projects.shown(name)
        if is_name(name):
            self._hall.demand_removable(name)
        return await asyncio.to_thread(self._hall.remove_project, name)

    async def check(self, name: str) -> Sequence[Problem]:
        return await asyncio.to_thread(self._hall.check_project, name)
