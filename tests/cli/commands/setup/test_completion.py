"""`guild completion`: the scripts contain every command, and bash can use its own."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from guildhall.cli import command_table

if TYPE_CHECKING:
    from tests.conftest import Guild


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_command_is_in_the_script(guild: Guild, shell: str) -> None:
    ran = guild("completion", shell)
    assert ran.code == 0
    for command in command_table.COMMANDS:
        assert command.name.split()[-1] in ran.out
    assert "override-model" in ran.out


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["re"], ["resume", "retry", "replay"]),
        (["worker", "l"], ["ls", "lock"]),
        (["worker", "new", "x", "--f"], ["--force"]),
        (["run", "x", "--ov"], ["--override-model"]),
    ],
)
def test_bash_completes_commands_and_options(guild: Guild, typed: list[str], offered: list[str]) -> None:
    script = guild("completion", "bash").out
    ask = f'COMP_WORDS=(guild {" ".join(typed)}); COMP_CWORD={len(typed)}; _guild; printf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", f"{script}\n{ask}"], capture_output=True, text=True, check=True)
    assert done.stdout.split() == offered


def test_bash_offers_files_where_no_word_fits(guild: Guild, tmp_path: object) -> None:
    script = guild("completion", "bash").out
    ask = 'COMP_WORDS=(guild run /et); COMP_CWORD=2; _guild; printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(["bash", "-c", f"{script}\n{ask}"], capture_output=True, text=True, check=True)
    assert "/etc" in done.stdout.split()
