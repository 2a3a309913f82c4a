"""The documentation names every command, option, exit code and error."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from guildhall.cli import command_table
from guildhall.cli.argument_parser import parser_of
from tests.cli.test_exit_codes import EXIT_CODES, every_error

DOCS = Path(__file__).parents[2] / "docs"


def section(name: str) -> str:
    text = (DOCS / "commands.md").read_text()
    found = re.search(rf"^##+ guild {re.escape(name)}\n(.*?)(?=^##|\Z)", text, re.M | re.S)
    assert found, f"docs/commands.md has no section about guild {name}"
    return found[1]


@pytest.mark.parametrize("command", command_table.COMMANDS, ids=lambda command: command.name)
def test_each_command_is_documented_with_its_options(command: command_table.Row) -> None:
    text = section(command.name)
    if not command.function:
        return
    parser = parser_of(command, getattr(import_module(command.module), command.function))
    missing = [option for option in parser.options if option not in ("--help", "--debug") and f"`{option}" not in text]
    assert missing == []
    assert command.example in text


def test_no_command_is_documented_that_does_not_exist() -> None:
    named = re.findall(r"^##+ guild (.*)$", (DOCS / "commands.md").read_text(), re.M)
    assert sorted(named) == sorted(command.name for command in command_table.COMMANDS)


def test_the_documented_exit_codes_are_those_of_the_program() -> None:
    rows = re.findall(r"^\| (\d+) \| [^|]+ \|$", (DOCS / "commands.md").read_text(), re.M)
    assert sorted(map(int, rows)) == sorted(EXIT_CODES)


def test_each_error_is_documented_with_its_exit_code_and_http_status() -> None:
    table = (DOCS / "errors.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \| (\d+) \| [^|]+ \| [^|]+ \|$", table, re.M)
    documented = sorted((code, int(exit_code), int(status)) for code, exit_code, status in rows)
    assert documented == sorted((kind.code, kind.exit_code, kind.http_status) for kind in every_error())
