"""The rows of commands.tsv name functions that exist, in modules that are easy to find."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from itertools import groupby
from pkgutil import walk_packages

import pytest

from guildhall.cli import commands
from guildhall.cli.command import Command
from guildhall.cli.command_table import COMMANDS, Row, family

SHORT_FORMS = {"approve": "answer", "deny": "answer"}
WITH_FUNCTION = [row for row in COMMANDS if row.function]


def test_a_name_occurs_once() -> None:
    names = [row.name for row in COMMANDS]
    assert len(names) == len(set(names)) > 70


def test_a_row_without_a_function_has_subcommands() -> None:
    assert [row.name for row in COMMANDS if not row.function and not family(row.name)] == ["help"]


def test_the_commands_of_a_group_are_together() -> None:
    groups = [row.group for row in COMMANDS]
    assert [group for group, _ in groupby(groups)] == list(dict.fromkeys(groups))


@pytest.mark.parametrize("row", COMMANDS, ids=lambda row: row.name)
def test_a_row_is_complete(row: Row) -> None:
    assert row.summary
    assert not row.summary.endswith(".")
    assert row.example.removeprefix("claude mcp add guild -- ").startswith("guild ")


@pytest.mark.parametrize("row", WITH_FUNCTION, ids=lambda row: row.name)
def test_a_command_is_in_the_module_of_its_first_word(row: Row) -> None:
    first = row.name.split()[0]
    assert row.module.rpartition(".")[2] == SHORT_FORMS.get(first, first)
    assert isinstance(getattr(import_module(row.module), row.function), Command)


def test_each_function_has_a_row() -> None:
    modules = [import_module(found.name) for found in walk_packages(commands.__path__, "guildhall.cli.commands.")]
    functions = {
        (module.__name__, name)
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, Command)
    }
    assert functions == {(row.module, row.function) for row in WITH_FUNCTION}


def test_commands_without_an_event_loop_do_not_import_asyncio() -> None:
    queries = [row for row in WITH_FUNCTION if not getattr(import_module(row.module), row.function).event_loop]
    names = ["guildhall.cli.command", "guildhall.hall.client.transport", "guildhall.hall.client.remote"]
    names = [*names, *sorted({row.module for row in queries})]
    code = f"import sys; sys.path[:] = {sys.path!r}; import {', '.join(names)}; print('asyncio' in sys.modules)"
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True)
    assert len(queries) > 5
    assert done.stdout == "False\n"
