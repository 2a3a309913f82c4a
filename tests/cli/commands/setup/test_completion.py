"""`guild completion`: the scripts contain every command, and bash can use its own."""

from __future__ import annotations

import os
import pty
import select
import subprocess
from typing import TYPE_CHECKING

import pytest

from guildhall.cli import command_table

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Guild


TIMEOUT_S = 60


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


def press_tab(script: Path, folder: Path, line: str, marker: str) -> str:
    """Type a line with a tab at an interactive bash that has the completion. Return what it printed up to `marker`."""
    program, terminal = pty.openpty()
    bash = subprocess.Popen(
        ["bash", "--norc", "--noprofile", "-i"],
        stdin=terminal, stdout=terminal, stderr=terminal, cwd=folder, start_new_session=True,
        env={"PATH": "/usr/bin:/bin", "PS1": "$ ", "TERM": "dumb", "HOME": str(folder)},
    )  # fmt: skip
    os.close(terminal)
    printed = b""
    try:
        os.write(program, f"guild() {{ printf 'arg=%s.\\n' \"$@\"; }}; source {script}\n{line}\t\n".encode())
        while marker.encode() not in printed and select.select([program], [], [], TIMEOUT_S)[0]:
            printed += os.read(program, 4096)
    finally:
        bash.kill()
        bash.wait()
        os.close(program)
    return printed.decode(errors="replace")


def test_bash_completes_file_names_where_no_word_fits(guild: Guild, tmp_path: Path) -> None:
    (tmp_path / "script").write_text(guild("completion", "bash").out)
    (tmp_path / "review.yaml").touch()
    assert "arg=review.yaml." in press_tab(tmp_path / "script", tmp_path, "guild plan rev", "arg=review.yaml.")


def test_completion_never_executes_a_file_name(guild: Guild, tmp_path: Path) -> None:
    (tmp_path / "script").write_text(guild("completion", "bash").out)
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "review$(touch${IFS}executed).yaml").touch()
    press_tab(tmp_path / "script", folder, "guild plan rev", "executed).yaml.")
    assert [path.name for path in folder.iterdir()] == ["review$(touch${IFS}executed).yaml"]
