"""Package store: lists, creates, adds and removes the packages of a home, and loads the worker of a package.

Invalid packages are listed with their error. Does not parse a package (see `workers.package`).

Invariant: a package is added as a whole or not at all, and the files of a removed or replaced package are kept.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guildhall.core import ids
from guildhall.core.errors import Conflict, GuildError, InvalidFile, NotFound, UsageError
from guildhall.core.ids import is_name, new_id
from guildhall.core.text import did_you_mean
from guildhall.workers.definition import Definition
from guildhall.workers.model import Lock, Worker
from guildhall.workers.package import (
    PROJECT_FILE,
    Added,
    Kind,
    Package,
    described_files,
    files_below,
    only_toolbox,
    read_package,
)
from guildhall.workers.references import Code, activation_of, exported

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from guildhall.core.paths import Home


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


SHIPPED = Path(__file__).parent / "shipped_packages"
ASIDE = ".aside"  # below packages/: what was replaced or removed
_NAME_LINE = re.compile(r'^name = ".*"$', re.MULTILINE)

_PROJECT = """\
# What each field means: docs/packages.md
[project]
name = "{name}"
version = "0.1.0"
description = "{description}"

[tool.guildhall]
{table}"""

_WORKER = '''\
posture = """
You are {name}. Say here how to work, what to care about, and what a good answer looks like.
"""
activate = "activation:activate"    # may be left out: then the posture and all tools it is
{toolboxes}# tools = ["Read", "Grep"]           # built-in tools
# checkout = "full"                  # of a project that it is commissioned in; sparse: .lore/ only
limits = {{max_turns = 50}}
'''

_ACTIVATION = '''\
"""How a run of this worker begins. Called once for each run, where neither files nor network can be reached."""


def activate(context):
    """Gives the system prompt, and if wanted fewer tools or tighter limits. What is remembered is added after it."""
    prompt = context["posture"]
    if context["context"] == "meeting":
        prompt += "\\nYou are in a meeting: be brief, and ask when you need to know more."
    return {"system_prompt": prompt}
'''

_TOOLS = '''\
"""The tools of this package. Each runs in a confined process; `capabilities` say what it needs beside its arguments."""

from guildhall import tool


@tool
def greet(who: str) -> str:
    """Greets somebody by name.

    Args:
        who: The name.
    """
    return f"Good day, {who}!"
'''


def templates() -> list[str]:
    """The packages that come with Guildhall, to be copied."""
    return sorted(path.parent.name for path in SHIPPED.glob(f"*/{PROJECT_FILE}"))


def new_package(home: Home, name: str, kind: Kind = "worker", template: str | None = None) -> Path:
    """A new package that works as it is; one that is there already is never touched."""
    if not is_name(name):
        raise UsageError(f"{name!r} cannot name a package", hint="Use letters, digits, '_', '-' and '.', at most 64.")
    if template is not None and template not in templates():
        raise NotFound(f"no package {template!r} comes with Guildhall", hint=did_you_mean(template, templates()))
    files = _starter(name, kind) if template is None else _copied(name, template)
    folder = home.packages / name
    if folder.exists() or folder.is_symlink():
        raise Conflict(f"there is already a package {name!r}", where=str(folder), hint="Choose another name.")
    incoming = _incoming(home)
    try:
        for path, text in files.items():
            target = incoming / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
        incoming.rename(folder)
    finally:
        shutil.rmtree(incoming, ignore_errors=True)
    return folder


def _copied(name: str, template: str) -> Mapping[str, str]:
    source = SHIPPED / template
    files = {path.relative_to(source).as_posix(): path.read_text(encoding="utf-8") for path in files_below(source)}
    project = _NAME_LINE.sub(f'name = "{name}"', files[PROJECT_FILE], count=1)
    own = project.replace(f'toolboxes = ["{template}"]', f'toolboxes = ["{name}"]')  # of one that uses its own tools
    return {**files, PROJECT_FILE: own}


def _starter(name: str, kind: Kind) -> Mapping[str, str]:
    types = {"worker": '"worker"', "toolbox": '"toolbox"', "both": '["worker", "toolbox"]'}
    own = f'toolboxes = ["{name}"]             # its own tools, as every other worker names them\n'
    table = f"type = {types[kind]}\n"
    files: dict[str, str] = {}
    if kind != "toolbox":
        toolboxes = (
            own if kind == "both" else '# toolboxes = ["mail"]               # toolboxes, of packages or files\n'
        )
        table += _WORKER.format(name=name, toolboxes=toolboxes)
        files["activation.py"] = _ACTIVATION
    if kind != "worker":
        table += 'export = "tools"                     # the module that has the tools\n'
        files["tools.py"] = _TOOLS
    project = _PROJECT.format(name=name, description="Say in a line what it is for", table=table)
    return {PROJECT_FILE: project, **files}


def add_package(
    home: Home, source: Path, at: str, *, seen: str | None, force: bool, unused: Callable[[str], None]
) -> Added:
    """Copies a folder into the home.

    `at` is the moment, for the name under which a replaced one is kept; `unused` raises where it may not be replaced
    now. `seen` is the digest of what a person has looked at: the very same is added.
    """
    incoming = _incoming(home)
    try:
        for path in files_below(source):
            target = incoming / path.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target, follow_symlinks=False)
        package = read_package(incoming, named=False)
        _, digest = described_files(incoming, code_in(package))
        if seen not in (None, digest):
            hint = "Look at it again, then add it again."
            raise Conflict("the folder has changed since it was looked at", where=str(source), hint=hint)
        folder = home.packages / package.name
        there = folder.exists() or folder.is_symlink()
        if there and not force:
            hint = "Use --force to put it in its place; the old one is kept aside."
            raise Conflict(f"there is already a package {package.name!r}", where=str(folder), hint=hint)
        if there:
            unused(package.name)
        kept = _put_aside(home, folder, at) if there else None
        incoming.rename(folder)
    except InvalidFile as error:
        error.where = (error.where or "").replace(str(incoming), str(source)) or None
        raise
    except OSError as error:
        raise Conflict(f"the package cannot be copied: {error.strerror or error}", where=str(source)) from None
    finally:
        shutil.rmtree(incoming, ignore_errors=True)
    return Added(name=package.name, path=folder, kept=kept)


def remove_package(home: Home, name: str, at: str) -> Path:
    """Takes a package out of use, right or wrong. Gives where it is kept."""
    folder = home.packages / name
    if not is_name(name) or not (folder.exists() or folder.is_symlink()):
        raise NotFound(f"there is no package {name!r}", hint="Which there are: guild package ls.")
    return _put_aside(home, folder, at)


def _incoming(home: Home) -> Path:
    """A folder beside the packages and none of them, so that a package is there as a whole or not at all."""
    folder = home.packages / f".{new_id('p')}"
    folder.mkdir(parents=True, mode=0o700)
    return folder


def _put_aside(home: Home, folder: Path, at: str) -> Path:
    aside = home.packages / ASIDE
    aside.mkdir(exist_ok=True)
    stem = f"{folder.name}-{re.sub('[^0-9T]', '', at)[:15]}"
    names = (stem, *(f"{stem}-{number}" for number in range(2, 1000)))
    target = next(aside / name for name in names if not os.path.lexists(aside / name))
    folder.rename(target)
    return target
