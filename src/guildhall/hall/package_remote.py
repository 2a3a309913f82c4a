"""The verbs about packages, asked for over HTTP."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.frame import Frame
    from guildhall.workers.package_text import Added, Kind, PackageShown
    from guildhall.workers.packages import PackageListed


class RemotePackages(ABC):
    """That part of a remote hall."""

    @abstractmethod
    async def _call(self, name: str, /, **arguments: Any) -> Any: ...

    async def packages(self) -> list[PackageListed]:
        return await self._call("packages")

    async def package(self, name: str, frame: Frame) -> PackageShown:
        return await self._call("package", name=name, frame=frame)

    async def package_look(self, folder: Path) -> PackageShown:
        return await self._call("package_look", folder=folder)

    async def package_new(self, name: str, *, kind: Kind = "worker", template: str | None = None) -> Path:
        return await self._call("package_new", name=name, kind=kind, template=template)

    async def package_add(self, folder: Path, *, seen: str | None = None, force: bool = False) -> Added:
        return await self._call("package_add", folder=folder, seen=seen, force=force)

    async def package_rm(self, name: str) -> Path:
        return await self._call("package_rm", name=name)
