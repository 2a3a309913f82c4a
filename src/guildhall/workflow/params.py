"""The params of a command line. Imports nothing heavy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core import yaml
from guildhall.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

_LONGEST = 100_000  # characters


def parse_params(pairs: Sequence[str]) -> dict[str, str]:
    """The params of a command line: name=value, each name once."""
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise UsageError(f"--param {yaml.shown(pair)} has no value", hint="Write --param name=value.")
        if name in found:
            raise UsageError(f"--param {yaml.shown(name)} is given twice", hint="Give it once.")
        if "\0" in value or len(value) > _LONGEST:
            raise UsageError(
                f"--param {yaml.shown(name)}: the value is too long, or not text", hint="Name a file instead."
            )
        found[name] = value
    return found
