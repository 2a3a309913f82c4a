"""A row of the table of commands. It imports nothing: see table.py."""

from __future__ import annotations


class Command:
    """One row: the name as it is typed, what it is for, an example, and where it is done: in the module of its first
    word, where nothing else is said.

    A plain class and no dataclass: the import of `dataclasses` alone takes as long as the whole page of help.
    """

    __slots__ = ("example", "first", "help", "module", "name", "syntax")

    def __init__(
        self, name: str, syntax: str, help: str, *, example: str, module: str | None = None, first: bool = False
    ) -> None:
        self.name = name
        self.syntax = syntax
        self.help = help
        self.example = example
        self.module = f"guildhall.cli.commands.{module or name.partition(' ')[0]}"
        self.first = first  # on the first page
