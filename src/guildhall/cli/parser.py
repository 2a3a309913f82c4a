"""The parser of one command. Not of `guild` itself: which command it is, the table knows."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, NoReturn

from guildhall.core.errors import UsageError
from guildhall.core.nearest import did_you_mean, nearest

if TYPE_CHECKING:
    from collections.abc import Callable

    from guildhall.cli.command_table import Command


class CommandParser(argparse.ArgumentParser):
    """argparse that raises our errors and names the nearest option."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self._name}: {message}", hint=f"`{self.prog} --help` shows how it is used.")

    @property
    def _name(self) -> str:
        return self.prog.removeprefix("guild ")

    @property
    def options(self) -> list[str]:
        """The long options that it knows."""
        return sorted(option for option in self._option_string_actions if option.startswith("--"))

    def read(self, words: list[str]) -> argparse.Namespace:
        """The arguments; positions and options may stand in any order."""
        self.usage = self.prog  # argparse would lay out the whole of it, and nobody reads it here
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


def parser_of(command: Command, arguments: Callable[[argparse.ArgumentParser], None]) -> CommandParser:
    """The parser of a command, furnished by its module."""
    parser = CommandParser(
        prog=f"guild {command.name}",
        description=f"{command.summary[0].upper()}{command.summary[1:]}.",
        epilog=f"example:\n  {command.example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(command=command.name)
    arguments(parser)
    parser.add_argument(
        "--debug", action="store_true", default=argparse.SUPPRESS, help="show the traceback when something breaks"
    )
    return parser


def positive_int(text: str) -> int:
    """A whole number above zero."""
    if text.isascii() and text.isdigit() and 0 < (number := int(text[:12])) < 10**9:
        return number
    raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above zero")


def entry_number(text: str) -> int:
    """The number of an entry of a journal: 0, 1, 2."""
    if text.isascii() and text.isdigit() and len(text) < 10:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not the number of an entry")


def dollars(text: str) -> float:
    """An amount above zero; a leading dollar sign is fine."""
    try:
        amount = float(text.removeprefix("$"))
    except ValueError:
        amount = 0.0
    if 0 < amount < 1e9:
        return amount
    raise argparse.ArgumentTypeError(f"{text!r} is not an amount in dollars above zero")


def seconds(text: str) -> float:
    """A time such as 30s or 10m, in seconds."""
    from guildhall.core.config import duration

    try:
        return duration(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(f"{error.message}. {error.hint}") from None
