"""Hints: every `guild` command in a message of the source exists and has the options that the message names."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import guildhall
from guildhall.cli import command_table
from guildhall.cli.argument_parser import parser_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import Guild

SOURCE = Path(guildhall.__file__).parent
COMMAND = re.compile(r"\bguild ((?:[a-z]+)(?: [^`,;.()\n]*)?)")
MIN_COMMANDS = 150  # the search finds the hints at all
# Words after "guild" in prose.
NOT_COMMANDS = {"command"}


def texts(tree: ast.AST) -> Iterator[str]:
    """Yield the texts of a module, except for docstrings. A value in a text is replaced by VALUE."""
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "VALUE" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings | parts:
            yield node.value


def commands() -> Iterator[tuple[Path, str]]:
    for path in sorted(SOURCE.rglob("*.py")):
        for text in texts(ast.parse(path.read_text())):
            for found in COMMAND.finditer(text):
                if found[1].split()[0] not in NOT_COMMANDS:
                    yield path.relative_to(SOURCE), found[1]


def problem_of(words: list[str]) -> str | None:
    """Return what is wrong with a command, or None."""
    row, length = command_table.find(words)
    if row is None:
        return "unknown command"
    if not row.function:
        return None if row.name == "help" or len(words) == length else "unknown subcommand"
    known = parser_of(row, getattr(import_module(row.module), row.function)).options
    options = [word.partition("=")[0] for word in words[length:] if re.fullmatch(r"--[a-z-]+(=.*)?", word)]
    unknown = [option for option in options if option not in known]
    return f"unknown options {unknown}" if unknown else None


def test_every_command_in_a_message_exists_with_its_options() -> None:
    found = list(commands())
    assert len(found) >= MIN_COMMANDS
    wrong = [f"{path}: guild {text}: {problem}" for path, text in found if (problem := problem_of(text.split()))]
    assert wrong == []


def test_similar_commands_are_suggested(guild: Guild) -> None:
    ran = guild("rum", "x")
    assert "`guild run`" in ran.err
    assert "`guild rm`" in ran.err


def test_json_is_accepted_before_and_after_the_command(guild: Guild, scribe: Path) -> None:
    for words in (("run", "scribe", "go", "--json"), ("--json", "run", "scribe", "go")):
        assert guild(*words).json["output"] == "written"


def test_mistakes_name_the_cause(guild: Guild, project: Path) -> None:
    ran = guild("resume", "--last")
    assert (ran.code, "unknown option '--last'" in ran.err) == (2, True)
    ran = guild("run", "nobody", "go")
    assert str(project / "workers") in ran.err
    (project / "workers").mkdir()
    (project / "workers" / "scribe.yaml").write_text("name: scribe\ninstructions: x\n")
    ran = guild("run", "scribe", "go", "--override-model", "scripts/x.yaml")
    assert "script:scripts/x.yaml" in ran.err


def test_internal_workers_are_not_listed(guild: Guild, scribe: Path) -> None:
    listed = {one["name"] for one in guild("worker", "ls", "--json").json}
    assert not listed & {"meeting-summariser", "memory-compactor"}
    assert "memory-compactor" not in guild("run", "zzzzzzzz", "go").err
    (scribe / "workers" / "boss.yaml").write_text("name: boss\ninstructions: x\nallow_workers: ['*']\n")
    called = {one["name"] for one in guild("plan", "boss", "--json").json["calls"]}
    assert "scribe" in called
    assert not called & {"meeting-summariser", "memory-compactor"}
