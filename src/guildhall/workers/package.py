"""Packages: reads a folder whose pyproject.toml declares a worker, a toolbox or both.

Packages are added and removed by `workers.home_packages`.

Invariant: reading a package executes none of its code.
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
from guildhall.core.yaml import Source, format_value, read_text
from guildhall.workers import template
from guildhall.workers.definition import Definition, Line
from guildhall.workers.loader import parse_definition

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.yaml import Location

PROJECT_FILE = "pyproject.toml"
TABLE = ("tool", "guildhall")
MODULE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")

Type = Literal["worker", "toolbox"]

_REFERENCE = re.compile(rf"{MODULE.pattern}(?:\.{MODULE.pattern}){{0,20}}(:{MODULE.pattern})?")
_AT_LINE = re.compile(r" \(at line (\d+), column \d+\)$")
# tomllib takes minutes for a name with thousands of parts.
_DOTTED_NAME = re.compile(r"""(?<!["'\w-])(?:["'\w-]++[ \t]*+\.[ \t]*+){20}""")
_HEADER = re.compile(r"\[([^\[\]]+)\]")
_KEY = re.compile(r"([A-Za-z0-9_-]+)\s*[.=]")
_MAX_CHARS = 200_000
_TOOLBOX_FIELDS = frozenset({"type", "name", "description", "export"})


def _check_reference(value: object) -> object:
    if isinstance(value, str):
        if not _REFERENCE.fullmatch(value):
            raise ValueError(f"invalid reference {format_value(value)}: write module or module:name")
        top = value.partition(":")[0].partition(".")[0]
        if top in sys.stdlib_module_names or top == "guildhall":
            raise ValueError(f"{top} is a module of Python or Guildhall: rename yours")
    return value


Reference = Annotated[StrictStr, BeforeValidator(_check_reference)]


class Table(Definition):
    """The `[tool.guildhall]` table. It has the fields of a worker file, with `posture` instead of `instructions`."""

    type: Annotated[
        tuple[Type, ...],
        BeforeValidator(lambda value: (value,) if isinstance(value, str) else value),
        Field(min_length=1, max_length=2),
    ]
    posture: StrictStr | None = None
    posture_file: Line | None = None
    activate: Reference | None = None  # `module:function`
    export: Reference | None = None  # `module` or `module:toolbox`

    @model_validator(mode="before")
    @classmethod
    def _check_instructions(cls, value: object) -> object:
        if isinstance(value, dict) and "instructions" in value:
            raise ValueError("a package cannot have `instructions`: use `posture` or `posture_file`")
        return cast("object", value)


@dataclass(frozen=True, kw_only=True)
class Package:
    """The declaration of a package."""

    folder: Path
    source: Source  # pyproject.toml
    table: Table
    posture: str | None  # None without a worker
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
    """Return the package in a folder. `check_name`: require that the folder has the name of the package."""
    try:
        return _read_package(folder, check_name)
    except OSError as error:
        raise InvalidFile(f"cannot read the package: {error.strerror or error}", where=str(folder)) from None


def is_toolbox_only(folder: Path) -> bool:
    """Return True if a package declares only a toolbox. The package may be invalid."""
    try:
        table = _with_defaults(_read_toml(folder / PROJECT_FILE), folder)[0].at(TABLE)
    except (GuildError, OSError):
        return False
    return cast("dict[str, Any]", table).get("type") in ("toolbox", ["toolbox"])


def _read_package(folder: Path, check_name: bool) -> Package:
    if folder.is_symlink():
        hint = "Remove the link, then copy the package: guild package add DIR"
        raise InvalidFile("the package is a symbolic link", where=str(folder), hint=hint)
    path = folder / PROJECT_FILE
    if not path.exists() and not path.is_symlink():
        if not folder.exists():
            raise NotFound(f"unknown package {folder.name!r}", where=str(folder))
        hint = "Use the folder of a package, or create a package: guild package new NAME"
        raise InvalidFile(f"{PROJECT_FILE} is missing", where=str(folder), hint=hint)
    source, version = _with_defaults(_read_toml(path), folder)
    table = parse_definition(source, Table, TABLE)
    if check_name and table.name != folder.name:
        hint = f"Rename the folder to {table.name}, or the package to {folder.name}."
        message = f"the package name {table.name!r} differs from the folder name {folder.name!r}"
        raise source.error(message, (*TABLE, "name"), hint)
    package = Package(folder=folder, source=source, table=table, posture=None, version=version)
    _check_types(package)
    return replace(package, posture=_posture(package)) if "worker" in table.type else package


def _read_toml(path: Path) -> Source:
    """Read a TOML file. Raise InvalidFile for a link, because its target could be outside of the package."""
    if path.is_symlink():
        raise InvalidFile("symbolic links are not allowed in a package", where=str(path), hint="Replace it by a copy.")
    text = read_text(path)
    if len(text) > _MAX_CHARS:
        raise InvalidFile(f"cannot read the file: larger than {_MAX_CHARS:,} characters", where=str(path))
    if _DOTTED_NAME.search(text):
        raise InvalidFile("not TOML: nested too deeply", where=str(path))
    try:
        data = tomllib.loads(text)
    except RecursionError:
        raise InvalidFile("not TOML: nested too deeply", where=str(path)) from None
    except ValueError as error:  # invalid TOML, or an integer with thousands of digits
        reason = next(iter(str(error).splitlines()), "")
        line = _AT_LINE.search(reason)
        where = f"{path}:{line[1]}" if line else str(path)
        raise InvalidFile(f"not TOML: {reason[: line.start()] if line else reason}", where=where) from None
    return Source(path, text, data, _find_lines(text))


def _find_lines(text: str) -> dict[Location, int]:
    """Return the lines of tables and fields. A line of a multi-line text that looks like a field is counted too."""
    lines: dict[Location, int] = {(): 1}
    table: Location = ()
    for number, line in enumerate(text.splitlines(), 1):
        if (header := _HEADER.match(line)) is not None:
            table = tuple(part.strip(" \"'") for part in header[1].split("."))
            lines.setdefault(table, number)
        elif (key := _KEY.match(line)) is not None:
            lines.setdefault((*table, key[1]), number)
    return lines


def _with_defaults(source: Source, folder: Path) -> tuple[Source, str | None]:
    """Return the source with name and description of `[project]` as defaults of the table, and the version."""
    data = cast("dict[str, Any]", source.data)
    tools = data.get(TABLE[0])
    table = cast("dict[str, Any]", tools).get(TABLE[1]) if isinstance(tools, dict) else None
    if not isinstance(table, dict):
        hint = 'Add the table, with type = "worker", "toolbox" or both in a list.'
        raise source.error("missing table: not a package of Guildhall", TABLE, hint)
    found: Any = data.get("project")
    project = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    defaults: dict[str, Any] = {"name": project.get("name", folder.name)}
    if isinstance(project.get("description"), str):
        defaults["description"] = project["description"]
    version = project.get("version")
    table = {**defaults, **cast("dict[str, Any]", table)}
    data = {**data, TABLE[0]: {**cast("dict[str, Any]", tools), TABLE[1]: table}}
    return replace(source, data=data), version if isinstance(version, str) and ids.is_name(version) else None


def _check_types(package: Package) -> None:
    """Raise InvalidFile for fields that the types of the package require or do not have."""
    table = package.table
    if len(set(table.type)) != len(table.type):
        raise package.error(f"duplicate type {table.type[0]}", "type")
    written = cast("dict[str, Any]", package.source.at(TABLE))
    worker_fields = [field for field in written if field not in _TOOLBOX_FIELDS]
    if "worker" not in table.type and worker_fields:
        raise package.error("only a worker has this field", worker_fields[0], 'Remove it, or add "worker" to `type`.')
    if "toolbox" not in table.type and table.export is not None:
        raise package.error("only a toolbox has this field", "export", 'Remove it, or add "toolbox" to `type`.')
    if "toolbox" in table.type and table.export is None:
        hint = 'Name the module with the tools, such as export = "mail_tools".'
        raise package.error("a toolbox needs this field", "export", hint)
    if table.activate is not None and ":" not in table.activate:
        raise package.error(f"{table.activate!r} does not name a function", "activate", "Write module:function.")


def _posture(package: Package) -> str:
    table = package.table
    if table.posture is not None and table.posture_file is not None:
        raise package.error("cannot be used together with `posture`", "posture_file", "Remove one of them.")
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
        raise package.error("a worker needs this field", "posture", hint)
    if not text.strip():
        raise package.error("the posture is empty", field)
    if "\0" in text or len(text) > template.MAX_CHARACTERS:
        reason = "it contains a NUL" if "\0" in text else f"longer than {template.MAX_CHARACTERS:,} characters"
        raise package.error(f"invalid posture: {reason}", field)
    return text
