"""The verbs about projects, carried out in this process."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from guildhall.core.errors import UsageError
from guildhall.core.ids import is_name

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.hall.composition.hall import Hall
    from guildhall.projects.model import Problem, Project, ProjectShown


class ProjectVerbs:
    """That part of a hall inside this process."""

    _hall: Hall

    async def projects(self) -> list[ProjectShown]:
        shown = await asyncio.to_thread(self._hall.projects.listed)
        return [replace(one, living=self._hall.project_services.unfinished(one.name)) for one in shown]

    async def project_add(self, path: Path, *, name: str | None = None, branch: str | None = None) -> Project:
        if not path.is_absolute() or "\0" in str(path):
            raise UsageError("path: give the whole path of the repository")
        return await asyncio.to_thread(self._hall.project_services.add_project, path, name, branch)

    async def project_remove(self, name: str) -> ProjectShown:
        self._hall.projects.shown(name)
        if is_name(name):
            self._hall.project_services.check_removable(name)
        return await asyncio.to_thread(self._hall.project_services.remove_project, name)

    async def project_check(self, name: str) -> list[Problem]:
        return await asyncio.to_thread(self._hall.project_services.check_project, name)
