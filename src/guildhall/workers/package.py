"""Worker package: reads a folder whose pyproject.toml declares a worker, a toolbox or both.

A package lies below the home's `packages/`. Does not install or remove packages (see `workers.package_store`).

Invariant: no code of the package is run here. The code that the `[tool.guildhall]` table names is loaded when a worker
is activated.
"""

from __future__ import annotations

import re
import sys
import tomllib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from pydantic import BeforeValidator, Field, StrictStr, model_validator

from guildhall.core import ids
from guildhall.core.errors import GuildError, InvalidFile, NotFound
from guildhall.core.yaml import Source, read_text, shown
from guildhall.workers import template
from guildhall.workers.definition import Definition, Line
from guildhall.workers.loader import parse_definition

if TYPE_CHECKING:
    from pathlib import Path

PROJECT_FILE = "pyproject.toml"
TABLE = ("tool", "guildhall")
MODULE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")

Type = Literal["worker", "toolbox"]

_REFERENCE = re.compile(rf"{MODULE.pattern}(?:\.{MODULE.pattern}){{0,20}}(:{MODULE.pattern})?")
_AT_LINE = re.compile(r" \(at line (\d+), column \d+\)$")
# tomllib takes minutes over a name of thousands of parts.
_ENDLESS_NAME = re.compile(r"""(?<!["'\w-])(?:["'\w-]++[ \t]*+\.[ \t]*+){20}""")
_MOST = 200_000
_NOT_OF_WORKERS = frozenset({"type", "name", "description", "export"})


def _listed(value: object) -> object:
    return (value,) if isinstance(value, str) else value


def _reference(value: object) -> object:
    if isinstance(value, str):
        if not _REFERENCE.fullmatch(value):
            raise ValueError(f"{shown(value)} is neither module nor module:name")
        top = value.partition(":")[0].partition(".")[0]
        if top in sys.stdlib_module_names or top == "guildhall":
            raise ValueError(f"{top} is the name of a module that does not belong to the package; rename it")
    return value


Reference = Annotated[StrictStr, BeforeValidator(_reference)]


class Table(Definition):
    """The `[tool.guildhall]` table. A worker has the fields of a worker file, and its instructions are its posture."""

    type: Annotated[tuple[Type, ...], BeforeValidator(_listed), Field(min_length=1, max_length=2)]
    posture: StrictStr | None = None
    posture_file: Line | None = None
    activate: Reference | None = None  # module:function
    export: Reference | None = None  # module, or module:toolbox

    @model_validator(mode="before")
    @classmethod
    def _posture(cls, value: object) -> object:
        if isinstance(value, dict) and "instructions" in value:
            raise ValueError("`instructions` of a package are its `posture`, or in its `posture_file`")
        return cast("object", value)


@dataclass(frozen=True, kw_only=True)
class Package:
    """The declaration of a package."""

    folder: Path
    source: Source  # of its pyproject.toml
    table: Table
    posture: str | None  # of a worker
    version: str | None = None

    @property
    def name(self) -> str:
        return self.table.name

    @property
    def types(self) -> tuple[Type, ...]:
        return self.table.type

    @property
    def path(self) -> Path:
        return self.source.path

    def error(self, message: str, field: str, hint: str | None = None) -> InvalidFile:
        return self.source.error(message, (*TABLE, field), hint)


def read_package(folder: Path, *, check_name: bool = True) -> Package:
    """Return the package in a folder. `named`: the folder must have the package's name."""
    try:
        return _package(folder, check_name)
    except OSError as error:
        raise InvalidFile(f"the package cannot be read: {error.strerror or error}", where=str(folder)) from None


def is_toolbox_only(folder: Path) -> bool:
    """Return True if a package, valid or not, declares only a toolbox."""
    try:
        table = _named(_read(folder / PROJECT_FILE), folder)[0].at(TABLE)
    except (GuildError, OSError):
        return False
    return cast("dict[str, Any]", table).get("type") in ("toolbox", ["toolbox"])


def _package(folder: Path, named: bool) -> Package:
    if folder.is_symlink():
        hint = "A package is a folder of its own: guild package add DIR copies one."
        raise InvalidFile("the package is a link", where=str(folder), hint=hint)
    path = folder / PROJECT_FILE
    if not path.exists() and not path.is_symlink():
        if not folder.exists():
            raise NotFound(f"there is no package {folder.name!r}", where=str(folder))
        raise InvalidFile(f"there is no {PROJECT_FILE}", where=str(folder), hint="It says what the package is.")
    source, version = _named(_read(path), folder)
    table = parse_definition(source, Table, TABLE)
    if named and table.name != folder.name:
        hint = f"Rename the folder to {table.name}, or the package to {folder.name}."
        raise source.error(f"the package {table.name!r} is in a folder with another name", (*TABLE, "name"), hint)
    package = Package(folder=folder, source=source, table=table, posture=None, version=version)
    _check_types(package)
    return replace(package, posture=_posture(package)) if "worker" in table.type else package


def _read(path: Path) -> Source:
    """Return the file as plain data. Raise InvalidFile for a link: it could lead anywhere."""
    if path.is_symlink():
        raise InvalidFile("this is a link", where=str(path), hint="Put a copy into the package.")
    text = read_text(path)
    if len(text) > _MOST:
        raise InvalidFile(f"the file is larger than {_MOST:,} characters", where=str(path))
    if _ENDLESS_NAME.search(text):
        raise InvalidFile("not TOML: nested too deeply", where=str(path))
    try:
        data = tomllib.loads(text)
    except RecursionError:
        raise InvalidFile("not TOML: nested too deeply", where=str(path)) from None
    except ValueError as error:  # also a whole number of thousands of digits
        said = next(iter(str(error).splitlines()), "")
        place = _AT_LINE.search(said)
        where = f"{path}:{place[1]}" if place else str(path)
        raise InvalidFile(f"not TOML: {said[: place.start()] if place else said}", where=where) from None
    return Source(path, text, data, {})


def _named(source: Source, folder: Path) -> tuple[Source, str | None]:
    """Return the source with name and description of `[project]` as defaults of the table, and the version."""
    data = cast("dict[str, Any]", source.data)
    tools = data.get(TABLE[0])
    table = cast("dict[str, Any]", tools).get(TABLE[1]) if isinstance(tools, dict) else None
    if not isinstance(table, dict):
        hint = 'It needs at least: type = "worker" (or "toolbox", or both in a list).'
        raise source.error("there is no such table, so this is no package of Guildhall", TABLE, hint)
    found: Any = data.get("project")
    project = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    given: dict[str, Any] = {"name": project.get("name", folder.name)}
    if isinstance(project.get("description"), str):
        given["description"] = project["description"]
    version = project.get("version")
    new = {**data, "tool": {**cast("dict[str, Any]", tools), "guildhall": {**given, **cast("dict[str, Any]", table)}}}
    return replace(source, data=new), version if isinstance(version, str) and ids.is_name(version) else None


def _check_types(package: Package) -> None:
    """Raise InvalidFile for fields that only the other type has: they would do nothing."""
    table = package.table
    if len(set(table.type)) != len(table.type):
        raise package.error(f"duplicate type {table.type[0]}", "type")
    written = cast("dict[str, Any]", package.source.at(TABLE))
    more = [field for field in written if field not in _NOT_OF_WORKERS]
    if "worker" not in table.type and more:
        raise package.error("only a worker has this field", more[0], 'Take it out, or add "worker" to `type`.')
    if "toolbox" not in table.type and table.export is not None:
        raise package.error("only a toolbox has this field", "export", 'Take it out, or add "toolbox" to `type`.')
    if "toolbox" in table.type and table.export is None:
        hint = 'Name the module that has the tools, such as export = "mail_tools".'
        raise package.error("this field is required of a toolbox", "export", hint)
    if table.activate is not None and ":" not in table.activate:
        raise package.error(f"{table.activate!r} names no function", "activate", "Write module:function.")


def _posture(package: Package) -> str:
    table = package.table
    if table.posture is not None and table.posture_file is not None:
        raise package.error("there are `posture` and `posture_file`", "posture_file", "Keep one.")
    if table.posture_file is not None:
        try:
            text = template.read_inside(str(package.folder), table.posture_file, "the package")
        except template.UnreadableFile as error:
            raise package.error(str(error), "posture_file") from None
        field = "posture_file"
    elif table.posture is not None:
        text, field = table.posture, "posture"
    else:
        hint = 'Write posture = "..." or posture_file = "posture.md".'
        raise package.error("this field is required of a worker", "posture", hint)
    if not text.strip():
        raise package.error("the posture is empty", field)
    if "\0" in text or len(text) > template.MAX_CHARACTERS:
        raise package.error(f"the posture is no text of at most {template.MAX_CHARACTERS:,} characters", field)
    return text
