"""Package store: lists, creates, adds and removes the packages of a home, and loads the worker of a package.

Packages are parsed by `workers.package`.

Invariant: a package is added as a whole or not at all. A removed or replaced package is moved to a backup.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from guildhall.core import ids
from guildhall.core.errors import Conflict, GuildError, InvalidFile, NotFound, UsageError
from guildhall.core.ids import NAME_RULE, is_name, new_id
from guildhall.core.text_checks import did_you_mean
from guildhall.workers.code_trust import Code, package_code, raise_unreadable
from guildhall.workers.definition import Definition
from guildhall.workers.model import AddedPackage, Lock, PackageFile, PackageKind, PackageListing, PackageTool, Worker
from guildhall.workers.package import PROJECT_FILE, Package, is_toolbox_only, read_package

if TYPE_CHECKING:
    from guildhall.core.paths import Home

MAX_FILES = 2_000
MAX_BYTES = 50_000_000
SHIPPED = Path(__file__).parent / "shipped_packages"
BACKUPS = ".aside"  # below packages/: replaced and removed packages
# Folders that other tools create in a package.
_IGNORED_FOLDERS = frozenset({"__pycache__", "node_modules", "venv", "build", "dist"})
_NAME_LINE = re.compile(r'^name = ".*"$', re.MULTILINE)


class Packages:
    """The packages below a home's `packages/`."""

    def __init__(self, home: Home) -> None:
        self._folder = home.packages

    def folders(self) -> Iterator[Path]:
        """Yield the folder of each package, which may be invalid. Skip folders whose name starts with a dot."""
        for path in sorted_entries(self._folder) if self._folder.is_dir() else ():
            if not path.name.startswith(".") and (path.is_dir() or path.is_symlink()):
                yield path

    def worker_folders(self) -> Iterator[Path]:
        """Yield the folder of each package with a worker, and of each invalid package that may have a worker."""
        for folder in self.folders():
            try:
                if "worker" in read_package(folder).types:
                    yield folder
            except GuildError:
                if not is_toolbox_only(folder):
                    yield folder

    def listings(self) -> list[PackageListing]:
        """Return all packages. Invalid packages have an error."""
        found: list[PackageListing] = []
        for folder in self.folders():
            try:
                package = read_package(folder)
                load_code(package)
                found.append(package_listing(package))
            except GuildError as error:
                found.append(PackageListing(name=folder.name, path=folder, error=str(error)))
        return found

    def find(self, name: str) -> Package:
        """Return a package. Raise NotFound if the package does not exist, and InvalidFile if it is invalid."""
        package = read_package(self.folder(name))
        load_code(package)
        return package

    def folder(self, name: str) -> Path:
        """Return the folder of a package, which may be invalid. Raise NotFound if the package does not exist."""
        folder = self._folder / name
        if not is_name(name) or not os.path.lexists(folder):
            hint = did_you_mean(name, [known.name for known in self.folders()]) or "List the packages: guild package ls"
            raise NotFound(f"unknown package {name!r}", hint=hint)
        return folder


def sorted_entries(folder: Path) -> list[Path]:
    """Return the entries of a folder by name. Raise InvalidFile if the folder cannot be read."""
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise InvalidFile(f"cannot read the folder: {error.strerror}", where=str(folder)) from None


def load_code(package: Package) -> list[Code]:
    """Return the code of a package. Raise an error if a module is missing or is not text."""
    found = [package_code(package, "toolbox")] if "toolbox" in package.types else []
    found += [package_code(package, "activation")] if package.table.activate is not None else []
    for code in found:
        code.sources()
    return found


def package_worker(package: Package, lock: Lock | None = None) -> Worker:
    """Return the worker of a package. Raise InvalidFile if it is only a toolbox."""
    if package.posture is None:
        hint = f"To use its tools, add them to a worker file: toolboxes: [{package.name}]"
        raise package.error(f"the package {package.name!r} is a toolbox, not a worker", "type", hint)
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


_PROJECT = """\
# The fields are described in docs/packages.md
[project]
name = "{name}"
version = "0.1.0"
description = "Describe the purpose of this package on one line"

[tool.guildhall]
{table}"""

_WORKER = '''\
posture = """
You are {name}. Describe here how to work, what to watch for, and what a good answer looks like.
"""
activate = "activation:activate"    # optional; default: the posture and all tools
{toolboxes}# tools = ["Read", "Grep"]           # built-in tools
# checkout = "full"                  # in a commission: the whole project; default: .lore/ only
limits = {{max_turns = 50}}
'''

_ACTIVATION = '''\
"""Activation of this worker. Guildhall calls it once for each run, without access to files or the network."""


def activate(context):
    """Return the system prompt, and optionally fewer tools or lower limits. Guildhall appends the memory."""
    prompt = context["posture"]
    if context["context"] == "meeting":
        prompt += "\\nYou are in a meeting: be brief, and ask if information is missing."
    return {"system_prompt": prompt}
'''

_TOOLS = '''\
"""Tools of this package. Each call runs in a confined process; `capabilities` declare its effects."""

from guildhall import tool


@tool
def greet(name: str) -> str:
    """Greet a person by name.

    Args:
        name: The name of the person.
    """
    return f"Good day, {name}!"
'''


def templates() -> list[str]:
    """Return the names of the packages that come with Guildhall."""
    return sorted(path.parent.name for path in SHIPPED.glob(f"*/{PROJECT_FILE}"))


def new_package(home: Home, name: str, kind: PackageKind = "worker", template: str | None = None) -> Path:
    """Create a package that works without changes. Raise Conflict if a package of this name exists."""
    if not is_name(name):
        raise UsageError(f"invalid package name {name!r}: {NAME_RULE}")
    if template is not None and template not in templates():
        raise NotFound(f"unknown template {template!r}", hint=did_you_mean(template, templates()))
    files = _starter_files(name, kind) if template is None else _template_files(name, template)
    folder = home.packages / name
    if os.path.lexists(folder):
        raise Conflict(f"the package {name!r} already exists", where=str(folder), hint="Use another name.")
    incoming = _create_incoming(home)
    try:
        for path, text in files.items():
            target = incoming / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
        incoming.rename(folder)
    finally:
        shutil.rmtree(incoming, ignore_errors=True)
    return folder


def _template_files(name: str, template: str) -> Mapping[str, str]:
    source = SHIPPED / template
    files = {path.relative_to(source).as_posix(): path.read_text(encoding="utf-8") for path in package_files(source)}
    project = _NAME_LINE.sub(f'name = "{name}"', files[PROJECT_FILE], count=1)
    # A worker that uses the tools of its own package names the package.
    return {**files, PROJECT_FILE: project.replace(f'toolboxes = ["{template}"]', f'toolboxes = ["{name}"]')}


def _starter_files(name: str, kind: PackageKind) -> Mapping[str, str]:
    table = 'type = ["worker", "toolbox"]\n' if kind == "both" else f'type = "{kind}"\n'
    files: dict[str, str] = {}
    if kind != "toolbox":
        toolboxes = '# toolboxes = ["mail"]               # packages or files\n'
        if kind == "both":
            toolboxes = f'toolboxes = ["{name}"]             # the tools of this package\n'
        table += _WORKER.format(name=name, toolboxes=toolboxes)
        files["activation.py"] = _ACTIVATION
    if kind != "worker":
        table += 'export = "tools"                     # the module with the tools\n'
        files["tools.py"] = _TOOLS
    return {PROJECT_FILE: _PROJECT.format(name=name, table=table), **files}


def add_package(
    home: Home, source: Path, at: str, *, confirmed_digest: str | None, force: bool, check_unused: Callable[[str], None]
) -> AddedPackage:
    """Copy a folder into the home. `force`: replace an existing package.

    `at`: the time, for the name of the backup. `check_unused` raises an error if the package cannot be replaced now.
    `confirmed_digest`: the digest that the user confirmed. Raise Conflict if the content has another one.
    """
    incoming = _create_incoming(home)
    try:
        for path in package_files(source):
            target = incoming / path.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target, follow_symlinks=False)
        package = read_package(incoming, check_name=False)
        _, digest = describe_files(incoming, load_code(package))
        if confirmed_digest not in (None, digest):
            hint = "Review it again, then add it again."
            raise Conflict("the folder was changed during the review", where=str(source), hint=hint)
        folder = home.packages / package.name
        exists = os.path.lexists(folder)
        if exists and not force:
            hint = "Replace it with --force. A backup of the old package is kept."
            raise Conflict(f"the package {package.name!r} already exists", where=str(folder), hint=hint)
        if exists:
            check_unused(package.name)
        backup = _back_up(home, folder, at) if exists else None
        incoming.rename(folder)
    except InvalidFile as error:
        others = [{**other, "where": _move(other.get("where"), incoming, source)} for other in error.others]
        where = _move(error.where, incoming, source)
        raise InvalidFile(error.message, field=error.field, others=others, where=where, hint=error.hint) from None
    except OSError as error:
        raise Conflict(f"cannot copy the package: {error.strerror or error}", where=str(source)) from None
    finally:
        shutil.rmtree(incoming, ignore_errors=True)
    return AddedPackage(name=package.name, path=folder, backup=backup)


def _move(place: str | None, incoming: Path, source: Path) -> str:
    """Return the place of an error in the folder of the user."""
    return (place or str(source)).replace(str(incoming), str(source))


def remove_package(home: Home, name: str, at: str) -> Path:
    """Remove a package, which may be invalid. Return the folder with its backup."""
    return _back_up(home, Packages(home).folder(name), at)


def _create_incoming(home: Home) -> Path:
    """Create a hidden folder next to the packages. Renaming it adds the package as a whole."""
    folder = home.packages / f".{new_id('p')}"
    folder.mkdir(parents=True, mode=0o700)
    return folder


def _back_up(home: Home, folder: Path, at: str) -> Path:
    """Move a package to a new folder below the backups. Return that folder."""
    backups = home.packages / BACKUPS
    backups.mkdir(exist_ok=True)
    stem = f"{folder.name}-{re.sub('[^0-9T]', '', at)[:15]}"
    names = (stem, *(f"{stem}-{number}" for number in range(2, 1000)))
    target = next(backups / name for name in names if not os.path.lexists(backups / name))
    folder.rename(target)
    return target


def package_files(folder: Path) -> Iterator[Path]:
    """Yield the files of a package. Raise InvalidFile for a link or another special file."""
    count = size = 0
    for parent, folders, files in os.walk(folder, onerror=raise_unreadable):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _IGNORED_FOLDERS)
        for name in (*folders, *sorted(files)):
            path = folder / parent / name
            status = path.lstat()
            if stat.S_ISDIR(status.st_mode):
                continue
            if not stat.S_ISREG(status.st_mode):
                problem = "symbolic links are not allowed" if stat.S_ISLNK(status.st_mode) else "not a regular file"
                raise InvalidFile(f"invalid package: {problem}", where=str(path), hint="Replace it by a regular file.")
            count, size = count + 1, size + status.st_size
            if count > MAX_FILES or size > MAX_BYTES:
                limit = f"{MAX_FILES:,} files" if count > MAX_FILES else f"{MAX_BYTES:,} bytes"
                hint = "Remove files that do not belong to the package."
                raise Conflict(f"the package has more than {limit}", where=str(folder), hint=hint)
            yield path


def describe_files(folder: Path, code: Iterable[Code]) -> tuple[tuple[PackageFile, ...], str]:
    """Return the files of a package and one digest of all files."""
    executed = {file.path for part in code for file in part.files}
    found: list[PackageFile] = []
    digests: dict[str, str] = {}
    try:
        for path in package_files(folder):
            name, data = path.relative_to(folder).as_posix(), path.read_bytes()
            found.append(PackageFile(path=name, size=len(data), runs=path.resolve() in executed))
            digests[name] = ids.digest(data)
    except OSError as error:
        raise InvalidFile(f"cannot read the package: {error.strerror or error}", where=str(folder)) from None
    return tuple(found), ids.fingerprint(digests)


def find_tools(code: Code) -> tuple[PackageTool, ...]:
    """Return the functions that are decorated with `tool`. Does not find tools that are created in another way."""
    return tuple(tool for text in code.sources().values() for tool in _decorated_tools(text))


def _decorated_tools(text: str) -> Iterator[PackageTool]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # reported when the module is loaded
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for decorator in node.decorator_list:
                call = decorator if isinstance(decorator, ast.Call) else None
                target = call.func if call else decorator
                if getattr(target, "id", getattr(target, "attr", None)) == "tool":
                    arguments = {keyword.arg: _literal(keyword.value) for keyword in call.keywords} if call else {}
                    yield _describe_tool(node, arguments)


def _describe_tool(node: ast.FunctionDef | ast.AsyncFunctionDef, arguments: Mapping[str | None, Any]) -> PackageTool:
    name, capabilities = arguments.get("name"), arguments.get("capabilities") or ()
    known = cast("list[Any]", capabilities) if isinstance(capabilities, set | list | tuple) else ["?"]
    summary = (ast.get_docstring(node) or "").partition("\n\n")[0]
    return PackageTool(
        name=name if isinstance(name, str) else node.name,
        description=" ".join(summary.split()),
        capabilities=tuple(sorted(map(str, known))),
    )


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return "?"
