"""Command table: reads the commands of `guild` from `commands.tsv` and prints the pages of help.

Shell completion and the documentation use the table too. Does not parse arguments (see `cli.arguments`).

Invariant: it imports nothing, so that `guild --help` takes no longer than Python itself.
"""

from __future__ import annotations

_PACKAGE = "guildhall.cli.commands"


class Row:
    """One command. Not a dataclass: the import of `dataclasses` takes as long as the whole page of help."""

    __slots__ = ("example", "function", "is_first", "module", "name", "summary", "usage")

    def __init__(self, name: str, usage: str, summary: str, example: str, function: str = "", page: str = "") -> None:
        self.name = name
        self.usage = usage
        self.summary = summary
        self.example = example
        module, _, self.function = function.partition(":")
        self.module = f"{_PACKAGE}.{module}"
        self.is_first = page == "first"


def _load() -> tuple[Row, ...]:
    path = f"{__file__.removesuffix('command_table.py')}commands.tsv"
    with open(path, encoding="utf-8") as file:  # noqa: PTH123 - pathlib takes longer than the whole page of help
        rows = file.read().splitlines()
    return tuple(Row(*row.split("\t")) for row in rows[1:])


COMMANDS = _load()

_HEAD = """guild runs AI workers that are files. Every model call and every tool call passes a door, on record.

usage: guild COMMAND [...]
"""
_FOOT = """
options:
  -h, --help     help for guild or for a command
  --version      the version
  --debug        show the traceback when something breaks

Every command: guild help all    One command: guild help COMMAND    New here: guild demo
"""


def find(words: list[str]) -> tuple[Row | None, int]:
    """Return the command that the words begin with, and the number of words in its name."""
    for length in (2, 1):
        name = " ".join(words[:length])
        for row in COMMANDS:
            if row.name == name and len(words) >= length:
                return row, length
    return None, 0


def family(name: str) -> list[Row]:
    """Return the subcommands of a command, such as `worker ls` and `worker show`."""
    return [row for row in COMMANDS if row.name.startswith(f"{name} ")]


def first_page() -> str:
    """Return the page that `guild` prints."""
    return _HEAD + "\n" + _lines([row for row in COMMANDS if row.is_first]) + _FOOT


def all_pages() -> str:
    """Return the page that `guild help all` prints."""
    return _HEAD + "\n" + _lines([row for row in COMMANDS if not family(row.name)]) + _FOOT


def family_page(name: str) -> str:
    """Return the page of a command with subcommands, such as `guild worker`."""
    return f"usage: guild {name} VERB [...]\n\n" + _lines(family(name)) + f"\nOne verb: guild help {name} VERB\n"


def _lines(rows: list[Row]) -> str:
    heads = [f"{row.name} {row.usage}".rstrip() for row in rows]
    width = max(map(len, heads))
    return "".join(f"  {head:<{width}}  {row.summary}\n" for head, row in zip(heads, rows, strict=True))
