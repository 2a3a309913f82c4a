"""Source files: read once, whole, and only from regular files."""

from __future__ import annotations

import asyncio
import hashlib
import os
from typing import TYPE_CHECKING

import pytest

from guildhall.core.errors import NotTrusted, ToolUnavailable
from guildhall.sandbox.view import View
from guildhall.tools.call_router import ToolEnvironment, describe_toolbox
from guildhall.tools.host.protocol import MAX_SOURCE_BYTES, read_source, source_digest

if TYPE_CHECKING:
    from pathlib import Path

TOOLBOX = '''
from guildhall import tool

@tool
def hello() -> str:
    """Says hello."""
    return "hello"
'''


def test_a_regular_file_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_bytes(b"x = 1\n")
    assert read_source(path) == b"x = 1\n"
    assert source_digest(b"x = 1\n") == hashlib.sha256(b"x = 1\n").hexdigest()


def test_special_and_missing_files_are_rejected(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name in ("pipe", "folder", "loop", "none", "x" * 300, "/dev/null"):
        with pytest.raises(ToolUnavailable, match=r"not a regular file|cannot read"):
            read_source(tmp_path / name)


def test_a_file_that_is_too_large_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "huge.py"
    with path.open("wb") as file:
        file.truncate(MAX_SOURCE_BYTES * 1000)  # a sparse file
    with pytest.raises(ToolUnavailable, match="too large"):
        read_source(path)


def list_tools(path: Path, pin: str | None) -> list[str]:
    found = asyncio.run(describe_toolbox("box", path, ToolEnvironment(view=View(cwd=path.parent)), pin))
    return [tool.name for tool in found.tools]


def test_a_pinned_toolbox_is_rejected_after_a_change(tmp_path: Path) -> None:
    path = tmp_path / "box.py"
    path.write_text(TOOLBOX)
    pin = source_digest(TOOLBOX.encode())
    assert list_tools(path, pin) == ["hello"]
    path.write_text(TOOLBOX + "# more\n")
    assert list_tools(path, None) == ["hello"]
    with pytest.raises(NotTrusted, match="has changed since it was trusted"):
        list_tools(path, pin)
