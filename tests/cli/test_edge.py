"""Errors and signals: every failure ends with a message and an exit code."""

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
screen.abort_note = "r-1 ends where it is"
run_interruptible(stubborn(), screen)
"""


@pytest.fixture
def set_command_error(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that sets the error that the command `break` raises."""
    module = ModuleType("tests.cli.breaking")
    row = command_table.Row("break", "", "breaks", "guild break", ":raise_error", "Advanced")
    row.module = module.__name__
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(command_table, "COMMANDS", (*command_table.COMMANDS, row))

    def set_error(error: BaseException) -> None:
        def raise_error(*_: object) -> int:
            raise error

        vars(module)["raise_error"] = cli_command(JSON)(raise_error)

    return set_error


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ValueError("seven"), 1, "guild: internal error: ValueError: seven at test_edge.py:"),
        (ValueError(), 1, "guild: internal error: ValueError at test_edge.py:"),
        (PermissionError(13, "Permission denied", "/x"), 1, "guild: /x: Permission denied\n"),
        (KeyboardInterrupt(), 130, "guild: interrupted\n"),
    ],
)
def test_unexpected_errors_are_reported_without_a_traceback(
    set_command_error: Any, capsys: pytest.CaptureFixture[str], error: BaseException, code: int, message: str
) -> None:
    set_command_error(error)
    assert main(["break"]) == code
    shown = capsys.readouterr()
    assert shown.err.startswith(message)
    assert "Traceback" not in shown.err
    assert shown.out == ""
    assert main(["break", "--debug"]) == code
    assert ("Traceback" in capsys.readouterr().err) == isinstance(error, Exception)


@pytest.mark.parametrize("place", ["/dev/null/home", "/proc/home"])
def test_an_unusable_home_is_reported(guild: Guild, project: Path, place: str) -> None:
    ran = guild("ls", "--json", env={"GUILDHALL_HOME": place})
    assert ran.code == 7
    assert ran.json["error"]["code"] == "hall_unavailable"
    assert "GUILDHALL_HOME" in ran.err


def test_a_second_signal_exits_at_once(guild: Guild) -> None:
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


def test_a_word_buffer_returns_whole_words() -> None:
    held = WordBuffer()
    assert [held.add(piece) for piece in ("the ke", "y is sk-", "123\nand", " so")] == [
        "the ",
        "key is ",
        "sk-123\n",
        "and ",
    ]
    assert held.flush() == "so"
    assert held.flush() == ""
