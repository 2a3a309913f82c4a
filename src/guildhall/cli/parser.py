"""Argument parser: parses the arguments of a command and defines their types.

An unknown option is an error that suggests the nearest option. Does not find the command (see `cli.command_table`).
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any, NoReturn, cast

from guildhall.core.errors import UsageError
from guildhall.core.text import did_you_mean, nearest

if TYPE_CHECKING:
    from guildhall.cli.command import Command
    from guildhall.cli.command_table import Row

_MAX_TEXT_BYTES = 1_000_000


class CommandParser(argparse.ArgumentParser):
    """A parser that raises UsageError and suggests the nearest option."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self._name}: {message}", hint=f"`{self.prog} --help` shows how it is used.")

    @property
    def _name(self) -> str:
        return self.prog.removeprefix("guild ")

    @property
    def options(self) -> list[str]:
        """The long options."""
        return sorted(option for option in self._option_string_actions if option.startswith("--"))

    def read(self, words: list[str]) -> argparse.Namespace:
        """Parse the arguments. Positional arguments and options can be in any order."""
        self.usage = self.prog  # argparse would format it for errors, which do not print it
        args, unknown = self.parse_known_intermixed_args(words)
        if not unknown:
            return args
        stray = unknown[0]
        if stray.startswith("-") and stray != "-":
            name = stray.partition("=")[0]
            hint = did_you_mean(name, self.options) if nearest(name, self.options) else f"See {self.prog} --help."
            if name == "--json" and "--output" in self.options:
                hint = "Write --output json."
            raise UsageError(f"{self._name}: there is no option {name!r}", hint=hint)
        hint = f"Put quotes around text with spaces. See {self.prog} --help."
        raise UsageError(f"{self._name}: too many arguments: {stray!r} has no place", hint=hint)


def parser_of(row: Row, command: Command) -> CommandParser:
    """Return the parser of a command."""
    parser = CommandParser(
        prog=f"guild {row.name}",
        description=f"{row.summary[0].upper()}{row.summary[1:]}.",
        epilog=f"example:\n  {row.example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.add_arguments(parser)
    parser.add_argument(
        "--debug", action="store_true", default=argparse.SUPPRESS, help="show the traceback when something breaks"
    )
    return parser


def positive_int(text: str) -> int:
    """Read a whole number above zero."""
    if text.isascii() and text.isdigit() and 0 < (number := int(text[:12])) < 10**9:
        return number
    raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above zero")


def entry_number(text: str) -> int:
    """Read the number of a journal entry, starting at 0."""
    if text.isascii() and text.isdigit() and len(text) < 10:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not the number of an entry")


def dollars(text: str) -> float:
    """Read an amount above zero, with or without a dollar sign."""
    try:
        amount = float(text.removeprefix("$"))
    except ValueError:
        amount = 0.0
    if 0 < amount < 1e9:
        return amount
    raise argparse.ArgumentTypeError(f"{text!r} is not an amount in dollars above zero")


def seconds(text: str) -> float:
    """Read a duration such as 30s or 10m."""
    from guildhall.core.config import duration

    try:
        return duration(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(f"{error.message}. {error.hint}") from None


def json_object(text: str, name: str, example: str) -> dict[str, Any]:
    """Read an object from JSON. `name` and `example` are for the error."""
    hint = f"Such as {example}."
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{name}: not JSON: {error}", hint=hint) from None
    if not isinstance(value, dict):
        raise UsageError(f"{name}: expected an object", hint=hint)
    return cast("dict[str, Any]", value)


def read_text(given: str | None, name: str, *, hint: str = "Give it in quotes, or `-` to read standard input.") -> str:
    """Return a text from the command line, or from standard input if it is `-` or not given."""
    if given is not None and given != "-":
        data = given.encode(errors="surrogateescape")
    elif sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison] - closed by the caller
        raise UsageError(f"cannot read the {name}: standard input is closed", hint=hint)
    elif given is None and sys.stdin.isatty():
        raise UsageError(f"no {name} given", hint=hint)
    else:
        try:
            data = sys.stdin.buffer.read(_MAX_TEXT_BYTES + 1)
        except OSError as error:
            raise UsageError(f"cannot read standard input: {error.strerror or error}") from None
    if len(data) > _MAX_TEXT_BYTES:
        raise UsageError(f"invalid {name}: larger than {_MAX_TEXT_BYTES:,} bytes", hint="Put it into a file.")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"invalid {name}: not UTF-8 text (byte {error.start})") from None
    if "\0" in text:
        raise UsageError(f"invalid {name}: contains a NUL character", hint="Only text can be given.")
    return text
