"""The commands of `guild`, read from commands.tsv: the pages of help, the completion and the documentation use them.

Imports nothing, so that `guild --help` costs no more than Python itself.
"""

from __future__ import annotations

FIRST_PAGE = 14  # commands at most
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
    """The command that the words begin with, and how many words its name has."""
    for length in (2, 1):
        name = " ".join(words[:length])
        for command in COMMANDS:
            if command.name == name and len(words) >= length:
                return command, length
    return None, 0


def family(name: str) -> list[Row]:
    """The commands whose name begins with this word: `worker ls`, `worker show` and so on."""
    return [command for command in COMMANDS if command.name.startswith(f"{name} ")]


def first_page() -> str:
    """What `guild` alone prints."""
    return _HEAD + "\n" + _lines([command for command in COMMANDS if command.is_first]) + _FOOT


def all_pages() -> str:
    """What `guild help all` prints."""
    return _HEAD + "\n" + _lines([c for c in COMMANDS if not family(c.name)]) + _FOOT


def family_page(name: str) -> str:
    """What `guild worker` prints."""
    return f"usage: guild {name} VERB [...]\n\n" + _lines(family(name)) + f"\nOne verb: guild help {name} VERB\n"


def _lines(commands: list[Row]) -> str:
    heads = [f"{command.name} {command.usage}".rstrip() for command in commands]
    width = max(map(len, heads))
    return "".join(f"  {head:<{width}}  {command.summary}\n" for head, command in zip(heads, commands, strict=True))
