"""Where members are found: the `guild-members/` folder of the project, then that of the home."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.errors import Conflict, GuildError, InvalidFile, NotFound
from guildhall.core.ids import is_name
from guildhall.core.nearest import did_you_mean
from guildhall.core.paths import stands_in
from guildhall.members.manifest import read_manifest
from guildhall.members.model import FOLDER, MANIFEST, Member

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from guildhall.core.paths import Home
    from guildhall.members.model import Scope

_MOST = 1_000  # folders that are looked at
_HOW_TO_FIND = "One of a project is found from that project's folder alone. To make one: guild member new NAME."


class Roster:
    """The members that can be reached from a project."""

    def __init__(self, root: Path, home: Home) -> None:
        self._folders: dict[Scope, Path] = {"project": root / FOLDER, "home": home.path / FOLDER}
        if root.resolve() == home.path.resolve():  # what lies there the person has put there
            del self._folders["project"]

    def listed(self) -> list[Member]:
        """Every member in the order of look-up, the wrong ones with what is wrong in them."""
        return [member for scope, top in self._folders.items() for member in _members(scope, top)]

    def find(self, name: str) -> Member:
        """The member of a name, or of `project/name` or `home/name`; it can be used."""
        scope, _, rest = name.rpartition("/")
        everyone = [member for member in self.listed() if not scope or member.scope == scope]
        found = [member for member in everyone if member.name == rest]
        if not found:
            hint = did_you_mean(rest, {member.name for member in everyone}) or _HOW_TO_FIND
            raise NotFound(f"there is no member {name!r}", hint=hint)
        if len(found) > 1:
            raise _ambiguous(name, found)
        if found[0].manifest is None:
            raise InvalidFile(f"the member {name!r} cannot be used: {found[0].error}")
        return found[0]


def _members(scope: Scope, top: Path) -> Iterator[Member]:
    try:
        if not top.is_dir() or stands_in(top):
            return
        folders = sorted(path for path in top.iterdir() if not path.name.startswith(".") and path.is_dir())
    except OSError as error:
        yield Member(name=top.name, scope=scope, folder=top, error=f"the folder cannot be read: {error.strerror}")
        return
    for folder in folders[:_MOST]:
        if (found := _member(scope, top, folder)) is not None:
            yield found


def _member(scope: Scope, top: Path, folder: Path) -> Member | None:
    """The member in a folder; None: there is no manifest in it."""
    shown = folder.name if is_name(folder.name) else ascii(folder.name)
    try:
        if not (folder / MANIFEST).exists():
            return None
        real = folder.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        return Member(name=shown, scope=scope, folder=folder, error=f"the folder cannot be read: {error}")
    if scope == "project" and not real.is_relative_to(top.parent.resolve()):
        error = f"{folder}: this is a link out of the project, to {real}"
        return Member(name=shown, scope=scope, folder=folder, error=error)
    try:
        manifest = read_manifest(real)
    except GuildError as error:
        return Member(name=shown, scope=scope, folder=real, error=str(error))
    return Member(name=manifest.name, scope=scope, folder=real, manifest=manifest)


def _ambiguous(name: str, found: list[Member]) -> GuildError:
    places = "\n".join(f"  {one.qualified}  {one.folder}" for one in found)
    if len({one.scope for one in found}) == len(found):
        hint = f"Say which one: {' or '.join(one.qualified for one in found)}."
        return Conflict(f"there are {len(found)} members named {name!r}:\n{places}", hint=hint)
    hint = "Change the `name` in one of the manifests."
    return InvalidFile(f"there are {len(found)} members named {name!r} in one folder:\n{places}", hint=hint)
