"""The verbs about projects: the part of `HallClient` that is about the user's repositories."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.projects.model import Problem, Project, ProjectShown


class ProjectClient(Protocol):
    """What can be done with the register of projects. None of it changes anything in a repository."""

    async def projects(self) -> list[ProjectShown]: ...  # the wrong ones too, with what is wrong

    async def project_add(self, path: Path, *, name: str | None = None, branch: str | None = None) -> Project: ...

    async def project_remove(self, name: str) -> ProjectShown: ...  # refused while something of it lives

    async def project_check(self, name: str) -> list[Problem]: ...
