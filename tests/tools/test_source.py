"""Code is read once, whole, and only from a plain file."""

from __future__ import annotations

import asyncio
import hashlib
import os
from typing import TYPE_CHECKING

import pytest

from guildhall.core.errors import NotTrusted, ToolUnavailable
from guildhall.sandbox.view import View
from guildhall.tools.executor import ToolEnvironment, describe_toolbox
from guildhall.tools.host.protocol import MAX_SOURCE_BYTES, pin_of, read_source

if TYPE_CHECKING:
    from pathlib import Path

TOOLBOX = '''
from guildhall import tool

@tool
def hello() -> str:
    """Says hello."""
    return "hello"
'''


def test_a_plain_file(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_bytes(b"x = 1\n")
    assert read_source(path) == b"x = 1\n"
    assert pin_of(b"x = 1\n") == hashlib.sha256(b"x = 1\n").hexdigest()


def test_what_is_no_plain_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name in ("pipe", "folder", "loop", "none", "x" * 300, "/dev/null"):
        with pytest.raises(ToolUnavailable, match=r"not a regular file|cannot be read"):
            read_source(tmp_path / name)


def test_what_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "huge.py"
    with path.open("wb") as file:
        file.truncate(MAX_SOURCE_BYTES * 1000)  # a hole: it takes no room
    with pytest.raises(ToolUnavailable, match="too large"):
        read_source(path)


def described(path: Path, pin: str | None) -> list[str]:
    found = asyncio.run(describe_toolbox("box", path, ToolEnvironment(view=View(cwd=path.parent)), pin))
    return [tool.name for tool in found.tools]


def test_what_is_pinned_runs_only_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "box.py"
    path.write_text(TOOLBOX)
    pin = pin_of(TOOLBOX.encode())
    assert described(path, pin) == ["hello"]
    path.write_text(TOOLBOX + "# more\n")
    assert described(path, None) == ["hello"]
    with pytest.raises(NotTrusted, match="has changed since it was trusted"):
        described(path, pin)
