"""The verbs about projects, asked for over HTTP."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.projects.model import Problem, Project, ProjectShown


class RemoteProjects(ABC):
    """That part of a remote hall."""

    @abstractmethod
    async def _call(self, name: str, /, **arguments: Any) -> Any: ...

    async def projects(self) -> list[ProjectShown]:
        return await self._call("projects")

    async def project_add(self, path: Path, *, name: str | None = None, branch: str | None = None) -> Project:
        return await self._call("project_add", path=path, name=name, branch=branch)

    async def project_remove(self, name: str) -> ProjectShown:
        return await self._call("project_remove", name=name)

    async def project_check(self, name: str) -> list[Problem]:
        return await self._call("project_check", name=name)
