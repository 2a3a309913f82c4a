"""What the code of a toolbox says about itself is asked once, and again as soon as a byte of it is another."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from guildhall.core.errors import ToolUnavailable
from guildhall.runs.assembly.activation import ToolboxCache
from guildhall.sandbox.view import View
from guildhall.tools.executor import ToolEnvironment
from guildhall.workers.code import Code, code_file

if TYPE_CHECKING:
    from pathlib import Path

# Each time that it is loaded it says something else.
TOOLBOX = """
import secrets
from guildhall import tool


def draw() -> str:
    return "a card"


draw.__doc__ = secrets.token_hex()
draw = tool(draw)
"""


def code(path: Path, text: str) -> Code:
    path.write_text(text)
    return Code(kind="toolbox", name="cards", root=path.parent, files=(code_file(path, path.parent),), is_own=True)


def test_the_same_code_is_asked_once(tmp_path: Path) -> None:
    path, around = tmp_path / "cards.py", ToolEnvironment(view=View(cwd=tmp_path))

    async def said(boxes: ToolboxCache, text: str, where: ToolEnvironment = around) -> str:
        (tool,) = (await boxes.describe(code(path, text), where)).tools
        return tool.description

    async def work() -> None:
        boxes = ToolboxCache()
        first = await said(boxes, TOOLBOX)
        assert await said(boxes, TOOLBOX) == first
        assert await said(boxes, TOOLBOX + "# another\n") != first
        assert await said(boxes, TOOLBOX) == first, "what it was before is known still"
        elsewhere = ToolEnvironment(view=View(cwd=tmp_path, hidden=(tmp_path,)))
        assert await said(boxes, TOOLBOX, elsewhere) != first, "it may have seen something else"
        assert await said(ToolboxCache(), TOOLBOX) != first, "another hall asks for itself"

    asyncio.run(work())


def test_what_is_wrong_with_it_is_not_remembered(tmp_path: Path) -> None:
    path, around = tmp_path / "cards.py", ToolEnvironment(view=View(cwd=tmp_path))
    text = TOOLBOX + "if secrets.randbelow(2**64):\n    raise OSError(secrets.token_hex())\n"

    async def work() -> list[str]:
        boxes, told = ToolboxCache(), list[str]()
        for _ in range(2):
            with pytest.raises(ToolUnavailable) as caught:
                await boxes.describe(code(path, text), around)
            told.append(caught.value.message)
        return told

    first, second = asyncio.run(work())
    assert first != second


def test_it_is_what_was_read_that_is_described(tmp_path: Path) -> None:
    """A file that is changed between its reading and its description does not speak for what was read."""
    path, around = tmp_path / "cards.py", ToolEnvironment(view=View(cwd=tmp_path))

    async def work() -> list[str]:
        boxes, read = ToolboxCache(), code(path, TOOLBOX)
        path.write_text(TOOLBOX.replace("draw", "deal"))
        return [tool.name for tool in (await boxes.describe(read, around)).tools]

    assert asyncio.run(work()) == ["draw"]
