"""The packages of a home: which there are, the worker in one, and what is wrong with those that cannot be used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from guildhall.core import ids
from guildhall.core.errors import GuildError, InvalidFile, NotFound
from guildhall.core.ids import is_name
from guildhall.core.nearest import did_you_mean
from guildhall.workers.code import activation_of, exported
from guildhall.workers.definition import Definition
from guildhall.workers.model import Worker
from guildhall.workers.package import PROJECT_FILE, Package, only_toolbox, read_package

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from guildhall.core.paths import Home
    from guildhall.workers.code import Code
    from guildhall.workers.model import Lock


@dataclass(frozen=True, kw_only=True)
class PackageListed:
    """A package in a listing. One that is wrong is listed too, with what is wrong in it."""

    name: str
    path: Path  # its folder
    types: tuple[str, ...] = ()
    description: str | None = None
    version: str | None = None
    error: str | None = None

    def as_dict(self) -> dict[str, Any]:
        return {**vars(self), "path": str(self.path), "types": list(self.types)}


class Packages:
    """The packages below a home's `packages/`."""

    def __init__(self, home: Home) -> None:
        self._folder = home.packages

    def folders(self) -> Iterator[Path]:
        """The folder of each, right or wrong. What begins with a dot is put aside, and no package."""
        try:
            found = sorted(self._folder.iterdir()) if self._folder.is_dir() else []
        except OSError as error:
            raise InvalidFile(f"the folder cannot be read: {error.strerror}", where=str(self._folder)) from None
        yield from (path for path in found if not path.name.startswith(".") and (path.is_dir() or path.is_symlink()))

    def workers(self) -> Iterator[Path]:
        """The folder of each that is a worker. One that is wrong is one too, unless it says that it is a toolbox."""
        for folder in self.folders():
            try:
                if "worker" in read_package(folder).types:
                    yield folder
            except GuildError:
                if not only_toolbox(folder):
                    yield folder

    def listed(self) -> list[PackageListed]:
        """Every package, the wrong ones with what is wrong in them."""
        return [_listed(folder) for folder in self.folders()]

    def find(self, name: str) -> Package:
        """The package of a name, if it is right."""
        folder = self._folder / name
        if not is_name(name) or not (folder.exists() or folder.is_symlink()):
            hint = did_you_mean(name, [one.name for one in self.folders()]) or "Which there are: guild package ls."
            raise NotFound(f"there is no package {name!r}", hint=hint)
        package = read_package(folder)
        code_in(package)
        return package


def code_in(package: Package) -> list[Code]:
    """All code that a package names; an error where it is not there or cannot be run."""
    found = [exported(package)] if "toolbox" in package.types else []
    found += [activation_of(package)] if package.table.activate is not None else []
    for code in found:
        code.sources()  # it must be text
    return found


def worker_in(package: Package, lock: Lock | None = None) -> Worker:
    """The worker that a package is."""
    if package.posture is None:
        hint = "A toolbox is named by workers: toolboxes = [...]."
        raise package.error(f"the package {package.name!r} is a toolbox and no worker", "type", hint)
    fields = package.table.model_dump(mode="json", include=set(Definition.model_fields), exclude_unset=True)
    files = {file.shown: file.digest for code in code_in(package) for file in code.files}
    text = f"{package.source.text}\0{package.posture}\0{ids.canonical(files)}"
    return Worker(
        definition=Definition.model_validate(fields),
        instructions=package.posture,
        scope="package",
        digest=ids.digest(text.encode()),
        path=package.folder / PROJECT_FILE,
        lock=lock,
        activate=package.table.activate,
    )


def listed_as(package: Package) -> PackageListed:
    return PackageListed(
        name=package.name,
        path=package.folder,
        types=package.types,
        description=package.table.description,
        version=package.version,
    )


def _listed(folder: Path) -> PackageListed:
    try:
        package = read_package(folder)
        code_in(package)
    except GuildError as error:
        return PackageListed(name=folder.name, path=folder, error=str(error))
    return listed_as(package)
