"""The verbs about packages, carried out in this process."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from guildhall.core.clock import stamp
from guildhall.core.ids import is_name

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.frame import Frame
    from guildhall.hall.composition.hall import Hall
    from guildhall.workers.package_text import Added, Kind, PackageShown
    from guildhall.workers.packages import PackageListed


class PackageVerbs:
    """That part of a hall inside this process."""

    _hall: Hall

    async def packages(self) -> list[PackageListed]:
        from guildhall.workers.packages import Packages

        return await asyncio.to_thread(Packages(self._hall.home).listed)

    async def package(self, name: str, frame: Frame) -> PackageShown:
        from guildhall.hall.packaging import shown
        from guildhall.workers.packages import Packages

        return await shown(self._hall, Packages(self._hall.home).find(name), frame)

    async def package_look(self, folder: Path) -> PackageShown:
        from guildhall.hall.packaging import looked_at

        return await asyncio.to_thread(looked_at, folder)

    async def package_new(self, name: str, *, kind: Kind = "worker", template: str | None = None) -> Path:
        from guildhall.workers.package_change import new_package

        return new_package(self._hall.home, name, kind, template)

    async def package_add(self, folder: Path, *, seen: str | None = None, force: bool = False) -> Added:
        from guildhall.hall.packaging import demand_unused
        from guildhall.workers.package_change import add_package

        now, unused = stamp(self._hall.clock.now()), partial(demand_unused, self._hall)
        return await asyncio.to_thread(add_package, self._hall.home, folder, now, seen=seen, force=force, unused=unused)

    async def package_rm(self, name: str) -> Path:
        from guildhall.hall.packaging import demand_unused
        from guildhall.workers.package_change import remove_package

        if is_name(name):  # nothing else is in use
            demand_unused(self._hall, name)
        return await asyncio.to_thread(remove_package, self._hall.home, name, stamp(self._hall.clock.now()))
