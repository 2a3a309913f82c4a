"""The verbs about packages: the part of `HallClient` that is about what lies in the home's `packages/`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.frame import Frame
    from guildhall.workers.package_text import Added, Kind, PackageShown
    from guildhall.workers.packages import PackageListed


class PackageClient(Protocol):
    """What can be done with packages. Only a person adds one: no run and no tool comes here."""

    async def packages(self) -> list[PackageListed]: ...  # the wrong ones too, with what is wrong

    async def package(self, name: str, frame: Frame) -> PackageShown: ...  # its tools are loaded, in a child

    async def package_look(self, folder: Path) -> PackageShown: ...  # one that need not be added; nothing of it is run

    async def package_new(self, name: str, *, kind: Kind = "worker", template: str | None = None) -> Path: ...

    # `seen` is the digest of what was looked at
    async def package_add(self, folder: Path, *, seen: str | None = None, force: bool = False) -> Added: ...

    async def package_rm(self, name: str) -> Path: ...  # where it is kept
