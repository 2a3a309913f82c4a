"""Package store: lists, creates, adds and removes the packages of a home, and loads the worker of a package.

Invalid packages are listed with their error. Does not parse a package (see `workers.package`).

Invariant: a package is added as a whole or not at all, and the files of a removed or replaced package are kept.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from guildhall.core import ids
from guildhall.core.errors import Conflict, GuildError, InvalidFile, NotFound, UsageError
from guildhall.core.ids import is_name, new_id
from guildhall.core.text import did_you_mean
from guildhall.workers.code import Code, package_code
from guildhall.workers.definition import Definition
from guildhall.workers.model import AddedPackage, Lock, PackageFile, PackageKind, PackageListing, PackageTool, Worker
from guildhall.workers.package import PROJECT_FILE, Package, is_toolbox_only, read_package

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from guildhall.core.paths import Home

MAX_FILES = 2_000
MAX_BYTES = 50_000_000
SHIPPED = Path(__file__).parent / "shipped_packages"
ASIDE = ".aside"  # below packages/: what was replaced or removed
# Folders of other tools beside the files of a package.
_IGNORED_FOLDERS = frozenset({"__pycache__", "node_modules", "venv", "build", "dist"})
_NAME_LINE = re.compile(r'^name = ".*"$', re.MULTILINE)


class Packages:
    """The packages below a home's `packages/`."""

    def __init__(self, home: Home) -> None:
        self._folder = home.packages

    def folders(self) -> Iterator[Path]:
        """Yield the folder of each package, valid or not. Names that begin with a dot are not packages."""
        try:
            found = sorted(self._folder.iterdir()) if self._folder.is_dir() else []
        except OSError as error:
            raise InvalidFile(f"the folder cannot be read: {error.strerror}", where=str(self._folder)) from None
        yield from (path for path in found if not path.name.startswith(".") and (path.is_dir() or path.is_symlink()))

    def worker_folders(self) -> Iterator[Path]:
        """Yield the folder of each worker package. An invalid package counts, unless it declares only a toolbox."""
        for folder in self.folders():
            try:
                if "worker" in read_package(folder).types:
                    yield folder
            except GuildError:
                if not is_toolbox_only(folder):
                    yield folder

    def listings(self) -> list[PackageListing]:
        """Return every package, the invalid ones with their error."""
        return [_listed(folder) for folder in self.folders()]

    def find(self, name: str) -> Package:
        """Return the package of a name. Raise NotFound if there is none, and InvalidFile if it is not valid."""
        folder = self._folder / name
        if not is_name(name) or not (folder.exists() or folder.is_symlink()):
            hint = did_you_mean(name, [one.name for one in self.folders()]) or "Which there are: guild package ls."
            raise NotFound(f"there is no package {name!r}", hint=hint)
        package = read_package(folder)
        load_code(package)
        return package


def load_code(package: Package) -> list[Code]:
    """Return all code that a package names. Raise an error if a part is missing or is not text."""
    found = [package_code(package, "toolbox")] if "toolbox" in package.types else []
    found += [package_code(package, "activation")] if package.table.activate is not None else []
    for code in found:
        code.sources()
    return found


def package_worker(package: Package, lock: Lock | None = None) -> Worker:
    """Return the worker of a package."""
    if package.posture is None:
        hint = "A toolbox is named by workers: toolboxes = [...]."
        raise package.error(f"the package {package.name!r} is a toolbox and no worker", "type", hint)
    fields = package.table.model_dump(mode="json", include=set(Definition.model_fields), exclude_unset=True)
    files = {file.display_path: file.digest for code in load_code(package) for file in code.files}
    text = f"{package.source.text}\0{package.posture}\0{ids.canonical(files)}"
    return Worker(
        definition=Definition.model_validate(fields),
        instructions=package.posture,
        scope="package",
        digest=ids.digest(text.encode()),
        path=package.path,
        lock=lock,
        activate=package.table.activate,
    )


def package_listing(package: Package) -> PackageListing:
    return PackageListing(
        name=package.name,
        path=package.folder,
        types=package.types,
        description=package.table.description,
        version=package.version,
    )


def _listed(folder: Path) -> PackageListing:
    try:
        package = read_package(folder)
        load_code(package)
    except GuildError as error:
        return PackageListing(name=folder.name, path=folder, error=str(error))
    return package_listing(package)


_PROJECT = """\
# What each field means: docs/packages.md
[project]
name = "{name}"
version = "0.1.0"
description = "Say in a line what it is for"

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
    """Return the names of the packages that come with Guildhall."""
    return sorted(path.parent.name for path in SHIPPED.glob(f"*/{PROJECT_FILE}"))


def new_package(home: Home, name: str, kind: PackageKind = "worker", template: str | None = None) -> Path:
    """Create a package that works without changes. An existing package is never changed."""
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


def _starter(name: str, kind: PackageKind) -> Mapping[str, str]:
    types = '["worker", "toolbox"]' if kind == "both" else f'"{kind}"'
    table = f"type = {types}\n"
    files: dict[str, str] = {}
    if kind != "toolbox":
        toolboxes = '# toolboxes = ["mail"]               # toolboxes, of packages or files\n'
        if kind == "both":
            toolboxes = f'toolboxes = ["{name}"]             # its own tools, as every other worker names them\n'
        table += _WORKER.format(name=name, toolboxes=toolboxes)
        files["activation.py"] = _ACTIVATION
    if kind != "worker":
        table += 'export = "tools"                     # the module that has the tools\n'
        files["tools.py"] = _TOOLS
    return {PROJECT_FILE: _PROJECT.format(name=name, table=table), **files}


def add_package(
    home: Home, source: Path, at: str, *, confirmed_digest: str | None, force: bool, check_unused: Callable[[str], None]
) -> AddedPackage:
    """Copy a folder into the home.

    `at` is the time, for the name of the files that are kept of a replaced package. `unused` raises if the package
    cannot be replaced now. `seen` is the digest that the user has confirmed: no other content is added.
    """
    incoming = _incoming(home)
    try:
        for path in files_below(source):
            target = incoming / path.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target, follow_symlinks=False)
        package = read_package(incoming, check_name=False)
        _, digest = describe_files(incoming, load_code(package))
        if confirmed_digest not in (None, digest):
            hint = "Look at it again, then add it again."
            raise Conflict("the folder has changed since it was looked at", where=str(source), hint=hint)
        folder = home.packages / package.name
        there = folder.exists() or folder.is_symlink()
        if there and not force:
            hint = "Use --force to put it in its place; the old one is kept aside."
            raise Conflict(f"there is already a package {package.name!r}", where=str(folder), hint=hint)
        if there:
            check_unused(package.name)
        kept = _put_aside(home, folder, at) if there else None
        incoming.rename(folder)
    except InvalidFile as error:
        where = (error.where or "").replace(str(incoming), str(source)) or None
        raise InvalidFile(error.message, others=error.others, where=where, hint=error.hint) from None
    except OSError as error:
        raise Conflict(f"the package cannot be copied: {error.strerror or error}", where=str(source)) from None
    finally:
        shutil.rmtree(incoming, ignore_errors=True)
    return AddedPackage(name=package.name, path=folder, backup=kept)


def remove_package(home: Home, name: str, at: str) -> Path:
    """Remove a package, valid or not. Return the folder that keeps its files."""
    folder = home.packages / name
    if not is_name(name) or not (folder.exists() or folder.is_symlink()):
        raise NotFound(f"there is no package {name!r}", hint="Which there are: guild package ls.")
    return _put_aside(home, folder, at)


def _incoming(home: Home) -> Path:
    """Create a hidden folder beside the packages. Renaming it adds the package as a whole."""
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


def files_below(folder: Path) -> Iterator[Path]:
    """Yield every file of a package. Raise InvalidFile for a link or another special file."""
    count = size = 0
    for place, folders, files in os.walk(folder, onerror=_unreadable):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _IGNORED_FOLDERS)
        for name in (*folders, *sorted(files)):
            path = folder / place / name
            status = path.lstat()
            if stat.S_ISDIR(status.st_mode):
                continue
            if not stat.S_ISREG(status.st_mode):
                kind = "a link" if stat.S_ISLNK(status.st_mode) else "no plain file"
                raise InvalidFile(f"this is {kind}", where=str(path), hint="Put a copy into the package.")
            count, size = count + 1, size + status.st_size
            if count > MAX_FILES or size > MAX_BYTES:
                message = f"the package is too large: over {MAX_FILES:,} files or {MAX_BYTES // 1_000_000} MB"
                raise Conflict(message, where=str(folder), hint="Is it the folder of the package itself?")
            yield path


def _unreadable(error: OSError) -> None:
    raise InvalidFile(f"the folder cannot be read: {error.strerror or error}", where=str(error.filename))


def describe_files(folder: Path, code: Iterable[Code]) -> tuple[tuple[PackageFile, ...], str]:
    """Return the files of a package, and a digest of all of them."""
    runs = {file.path for one in code for file in one.files}
    found: list[PackageFile] = []
    digests: dict[str, str] = {}
    try:
        for path in files_below(folder):
            shown, data = path.relative_to(folder).as_posix(), path.read_bytes()
            found.append(PackageFile(path=shown, size=len(data), runs=path.resolve() in runs))
            digests[shown] = ids.digest(data)
    except OSError as error:
        raise InvalidFile(f"the package cannot be read: {error.strerror or error}", where=str(folder)) from None
    return tuple(found), ids.fingerprint(digests)


def find_tools(code: Code) -> tuple[PackageTool, ...]:
    """Return the functions that are decorated with `tool`. Tools that are built in another way are not found."""
    return tuple(tool for text in code.sources().values() for tool in _tools(text))


def _tools(text: str) -> Iterator[PackageTool]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # loading it will say so
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for decorator in node.decorator_list:
                call = decorator if isinstance(decorator, ast.Call) else None
                target = call.func if call else decorator
                if getattr(target, "id", getattr(target, "attr", None)) == "tool":
                    given = {one.arg: _literal(one.value) for one in call.keywords} if call else {}
                    yield _tool(node, given)


def _tool(node: ast.FunctionDef | ast.AsyncFunctionDef, given: Mapping[str | None, Any]) -> PackageTool:
    name, can = given.get("name"), given.get("capabilities") or ()
    known = cast("list[Any]", can) if isinstance(can, set | list | tuple) else ["?"]
    said = (ast.get_docstring(node) or "").partition("\n\n")[0]
    return PackageTool(
        name=name if isinstance(name, str) else node.name,
        description=" ".join(said.split()),
        capabilities=tuple(sorted(map(str, known))),
    )


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return "?"
