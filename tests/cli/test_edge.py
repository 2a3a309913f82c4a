"""Whatever goes wrong ends in words and a number."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from guildhall.cli import command_table
from guildhall.cli.command import JSON
from guildhall.cli.command import command as cli_command
from guildhall.cli.follow import WordBuffer
from guildhall.cli.main import main

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Guild

STUBBORN = """
import asyncio
from guildhall.cli.command import run_interruptible
from guildhall.cli.screen import Screen

async def stubborn():
    print("ready", flush=True)
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            print("again", flush=True)

screen = Screen.of_process([])
screen.last_words = "r-1 ends where it is"
run_interruptible(stubborn(), screen)
"""


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A command of the test's own: `break`, which raises what it is told to."""
    module = ModuleType("tests.cli.breaking")
    row = command_table.Row("break", "", "breaks", "guild break", ":broken", "Advanced")
    row.module = module.__name__
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(command_table, "COMMANDS", (*command_table.COMMANDS, row))

    def raising(error: BaseException) -> None:
        def broken(*_: object) -> int:
            raise error

        vars(module)["broken"] = cli_command(JSON)(broken)

    return raising


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ValueError("seven"), 1, "guild: internal error: ValueError: seven\n"),
        (ValueError(), 1, "guild: internal error: ValueError\n"),
        (PermissionError(13, "Permission denied", "/x"), 1, "guild: /x: Permission denied\n"),
        (KeyboardInterrupt(), 130, "guild: interrupted\n"),
    ],
)
def test_what_nobody_foresaw(
    command: Any, capsys: pytest.CaptureFixture[str], error: BaseException, code: int, said: str
) -> None:
    command(error)
    assert main(["break"]) == code
    shown = capsys.readouterr()
    assert shown.err.startswith(said)
    assert "Traceback" not in shown.err
    assert shown.out == ""
    assert main(["break", "--debug"]) == code
    assert ("Traceback" in capsys.readouterr().err) == isinstance(error, Exception)


@pytest.mark.parametrize("place", ["/dev/null/home", "/proc/home"])
def test_a_home_that_cannot_be(guild: Guild, project: Path, place: str) -> None:
    ran = guild("ls", "--json", env={"GUILDHALL_HOME": place})
    assert ran.code == 7
    assert ran.json["error"]["code"] == "hall_unavailable"
    assert "GUILDHALL_HOME" in ran.err


def test_a_second_signal_ends_it_where_it_is(guild: Guild) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", STUBBORN],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=guild.environment(),
    )
    assert process.stdout
    assert process.stderr
    try:
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        assert process.stdout.readline() == "again\n"
        process.terminate()
        assert process.wait(5) == 130
        assert process.stderr.read() == "r-1 ends where it is\n"
    finally:
        process.kill()
        process.stdout.close()
        process.stderr.close()


def test_words_are_held_back_until_they_are_whole() -> None:
    held = WordBuffer()
    assert [held.add(piece) for piece in ("the ke", "y is sk-", "123\nand", " so")] == [
        "the ",
        "key is ",
        "sk-123\n",
        "and ",
    ]
    assert held.rest() == "so"
    assert held.rest() == ""
