"""Manifests and the roster: parses `guild-member.json`, and finds the members of a project and of the home.

A name is looked up in the project's `guild-members` folder and in the home's. `project/name` and `home/name` select a
folder.
Does not run a member (`process.py`) and does not check its trust (`service.py`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field, StrictStr, model_validator

from guildhall.core import yaml
from guildhall.core.config import VariableName
from guildhall.core.errors import Conflict, GuildError, InvalidFile, NotFound
from guildhall.core.ids import is_name
from guildhall.core.paths import Home, stands_in
from guildhall.core.text import did_you_mean
from guildhall.members.model import FOLDER, MANIFEST, Member, Scope
from guildhall.workers.definition import Line, Name, Part

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


PORT, PYTHON = "PORT", "PYTHON"
PLACEHOLDER = re.compile(r"\$\{([^}]*)\}")
_RESERVED = "GUILDHALL_"


def _word(value: str) -> str:
    if "\0" in value:
        raise ValueError("there is a NUL in the text")
    for name in PLACEHOLDER.findall(value):
        if name not in (PORT, PYTHON):
            raise ValueError(f"${{{name}}} means nothing here: there are ${{{PORT}}} and ${{{PYTHON}}}")
    return value


def _value(value: str) -> str:
    if "\0" in value:
        raise ValueError("there is a NUL in the text")
    for name in PLACEHOLDER.findall(value):
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise ValueError(f"${{{name}}} does not name a variable")
    return value


Word = Annotated[StrictStr, Field(max_length=4096), AfterValidator(_word)]
Value = Annotated[StrictStr, Field(max_length=32_768), AfterValidator(_value)]


class Mcp(Part):
    """The program that is the member."""

    command: Annotated[Line, AfterValidator(_word)] = Field(
        description="The program. With a slash it lies in the member's folder; ${PYTHON} is Guildhall's own Python."
    )
    args: tuple[Word, ...] = Field(default=(), description="Its arguments. ${PORT} is the port that it must serve at.")
    env: dict[VariableName, Value] = Field(
        default_factory=dict,
        description="Variables for it. ${PORT}, or ${NAME} for the variable of that name of whoever needs it first.",
    )

    @model_validator(mode="after")
    def _told_its_port(self) -> Mcp:
        if not any(f"${{{PORT}}}" in text for text in (*self.args, *self.env.values())):
            raise ValueError(f"the program is not told its port: write ${{{PORT}}} in `args` or `env`")
        if reserved := next((name for name in self.env if name.startswith(_RESERVED)), None):
            raise ValueError(f"env.{reserved}: names that begin with {_RESERVED} are Guildhall's own")
        return self

    @property
    def variables(self) -> tuple[str, ...]:
        """The names of the caller's variables that it wants."""
        named = (name for value in self.env.values() for name in PLACEHOLDER.findall(value))
        return tuple(dict.fromkeys(name for name in named if name not in (PORT, PYTHON)))


class Manifest(Part):
    """What a member says about itself."""

    model_config = ConfigDict(extra="forbid", frozen=True, serialize_by_alias=True)

    name: Name = Field(description="The member's name.")
    display_name: Line | None = Field(default=None, alias="displayName", description="Its name as people read it.")
    description: StrictStr | None = Field(default=None, description="What it is for, in a line.")
    version: Line | None = Field(default=None, description="Its version.")
    transport: Literal["http"] = Field(default="http", description="How it is spoken to: over HTTP.")
    mcp: Mcp = Field(description="The program that is the member.")
    capabilities: tuple[Line, ...] = Field(
        default=(), description="What it can do beside tools: `worker` means that it takes work."
    )
    schema_: StrictStr | None = Field(default=None, alias="$schema", description="For editors.")


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a member's folder; InvalidFile says file, line and field."""
    return yaml.validate(Manifest, yaml.read(folder / MANIFEST))


def filled(text: str, values: dict[str, str]) -> str:
    """A text with its placeholders replaced, once; one without a value is empty."""
    return PLACEHOLDER.sub(lambda match: values.get(match[1], ""), text)


def wanted(manifest: Manifest) -> Iterator[str]:
    """What running it means, in lines for a person who is to trust it."""
    yield " ".join([manifest.mcp.command, *manifest.mcp.args])
    if manifest.mcp.variables:
        yield f"is given: {', '.join(manifest.mcp.variables)}"


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
