"""Member manifest: defines the fields of `guild-member.json` and their constraints.

Does not read files: `members.registry` does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field, StrictStr, model_validator

from guildhall.core.config import VariableName
from guildhall.workers.definition import Line, Name, Part

PORT, PYTHON = "PORT", "PYTHON"
PLACEHOLDER = re.compile(r"\$\{([^}]*)\}")
_RESERVED_PREFIX = "GUILDHALL_"


def _check_argument(value: str) -> str:
    if "\0" in value:
        raise ValueError("contains a NUL character")
    for name in PLACEHOLDER.findall(value):
        if name not in (PORT, PYTHON):
            raise ValueError(f"unknown placeholder ${{{name}}}: use ${{{PORT}}} or ${{{PYTHON}}}")
    return value


def _check_variable(value: str) -> str:
    if "\0" in value:
        raise ValueError("contains a NUL character")
    for name in PLACEHOLDER.findall(value):
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise ValueError(f"invalid placeholder ${{{name}}}: not the name of a variable")
    return value


Argument = Annotated[StrictStr, Field(max_length=4096), AfterValidator(_check_argument)]
Variable = Annotated[StrictStr, Field(max_length=32_768), AfterValidator(_check_variable)]


class Mcp(Part):
    """The program of a member."""

    command: Annotated[Line, AfterValidator(_check_argument)] = Field(
        description="The program. With a slash, a path in the member's folder. ${PYTHON} is the Python of Guildhall."
    )
    args: tuple[Argument, ...] = Field(default=(), description="Arguments. ${PORT} is the port to listen on.")
    env: dict[VariableName, Variable] = Field(
        default_factory=dict,
        description="Variables. ${PORT} is the port, ${NAME} a variable of the caller that starts the member.",
    )

    @model_validator(mode="after")
    def _check_port(self) -> Mcp:
        if not any(f"${{{PORT}}}" in text for text in (*self.args, *self.env.values())):
            raise ValueError(f"the program does not receive its port: add ${{{PORT}}} to `args` or `env`")
        if reserved := next((name for name in self.env if name.startswith(_RESERVED_PREFIX)), None):
            raise ValueError(f"env.{reserved}: names that start with {_RESERVED_PREFIX} are reserved")
        return self

    @property
    def variables(self) -> tuple[str, ...]:
        """Return the names of the caller's variables that the member receives."""
        names = (name for value in self.env.values() for name in PLACEHOLDER.findall(value))
        return tuple(dict.fromkeys(name for name in names if name not in (PORT, PYTHON)))


class Manifest(Part):
    """The manifest of a member."""

    model_config = ConfigDict(extra="forbid", frozen=True, serialize_by_alias=True)

    name: Name = Field(description="The name of the member.")
    display_name: Line | None = Field(default=None, alias="displayName", description="The name for display.")
    description: StrictStr | None = Field(default=None, description="The purpose of the member, on one line.")
    version: Line | None = Field(default=None, description="The version of the member.")
    transport: Literal["http"] = Field(default="http", description="The transport, always HTTP.")
    mcp: Mcp = Field(description="The program of the member.")
    capabilities: tuple[Line, ...] = Field(default=(), description="`worker`: the member accepts jobs.")
    schema_: StrictStr | None = Field(default=None, alias="$schema", description="For editors.")


def fill_placeholders(text: str, values: dict[str, str]) -> str:
    """Return the text with all placeholders replaced by their values, or by "" without a value."""
    return PLACEHOLDER.sub(lambda match: values.get(match[1], ""), text)


def describe_command(manifest: Manifest) -> Iterator[str]:
    """Yield the command of the member, and the variables that it receives."""
    yield " ".join([manifest.mcp.command, *manifest.mcp.args])
    if manifest.mcp.variables:
        yield f"receives: {', '.join(manifest.mcp.variables)}"
