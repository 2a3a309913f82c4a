"""Manifest of a member: declares every field of `guild-member.json`, with its constraints.

Does not read files (see `folders.py`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field, StrictStr, model_validator

from guildhall.core.config import VariableName
from guildhall.workers.definition import Line, Name, Part

if TYPE_CHECKING:
    from collections.abc import Iterator

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
        """Return the names of the caller's variables that the member receives."""
        named = (name for value in self.env.values() for name in PLACEHOLDER.findall(value))
        return tuple(dict.fromkeys(name for name in named if name not in (PORT, PYTHON)))


class Manifest(Part):
    """All fields of a manifest."""

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


def fill_placeholders(text: str, values: dict[str, str]) -> str:
    """Return a text with its placeholders replaced. A placeholder without a value becomes empty."""
    return PLACEHOLDER.sub(lambda match: values.get(match[1], ""), text)


def describe_command(manifest: Manifest) -> Iterator[str]:
    """Yield lines that tell the user what the member runs and receives."""
    yield " ".join([manifest.mcp.command, *manifest.mcp.args])
    if manifest.mcp.variables:
        yield f"is given: {', '.join(manifest.mcp.variables)}"
