"""Toolbox cache: code is described once, and again when a byte of it or its environment changes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from guildhall.core.errors import ToolUnavailable
from guildhall.runs.assembly.tool_sources import ToolboxCache
from guildhall.sandbox.view import View
from guildhall.tools.call_router import ToolEnvironment
from guildhall.workers.code_trust import Code, code_file

if TYPE_CHECKING:
    from pathlib import Path

# Its description is different each time the code is loaded.
TOOLBOX = """
import secrets
from guildhall import tool


def draw() -> str:
    return "a card"


draw.__doc__ = secrets.token_hex()
draw = tool(draw)
"""


def write_code(path: Path, text: str) -> Code:
    path.write_text(text)
    return Code(kind="toolbox", name="cards", root=path.parent, files=(code_file(path, path.parent),), is_own=True)


def test_unchanged_code_is_described_once(tmp_path: Path) -> None:
    path, environment = tmp_path / "cards.py", ToolEnvironment(view=View(cwd=tmp_path))

    async def describe(cache: ToolboxCache, text: str, where: ToolEnvironment = environment) -> str:
        (tool,) = (await cache.describe(write_code(path, text), where)).tools
        return tool.description

    async def work() -> None:
        cache = ToolboxCache()
        first = await describe(cache, TOOLBOX)
        assert await describe(cache, TOOLBOX) == first
        assert await describe(cache, TOOLBOX + "# another\n") != first
        assert await describe(cache, TOOLBOX) == first, "earlier code is still cached"
        elsewhere = ToolEnvironment(view=View(cwd=tmp_path, hidden=(tmp_path,)))
        assert await describe(cache, TOOLBOX, elsewhere) != first, "another environment can change the description"
        assert await describe(ToolboxCache(), TOOLBOX) != first, "caches are not shared"

    asyncio.run(work())


def test_errors_are_not_cached(tmp_path: Path) -> None:
    path, environment = tmp_path / "cards.py", ToolEnvironment(view=View(cwd=tmp_path))
    text = TOOLBOX + "if secrets.randbelow(2**64):\n    raise OSError(secrets.token_hex())\n"

    async def work() -> list[str]:
        cache, messages = ToolboxCache(), list[str]()
        for _ in range(2):
            with pytest.raises(ToolUnavailable) as caught:
                await cache.describe(write_code(path, text), environment)
            messages.append(caught.value.message)
        return messages

    first, second = asyncio.run(work())
    assert first != second


def test_the_code_that_was_read_is_described(tmp_path: Path) -> None:
    """Changing the file after it was read does not change the description."""
    path, environment = tmp_path / "cards.py", ToolEnvironment(view=View(cwd=tmp_path))

    async def work() -> list[str]:
        cache, read = ToolboxCache(), write_code(path, TOOLBOX)
        path.write_text(TOOLBOX.replace("draw", "deal"))
        return [tool.name for tool in (await cache.describe(read, environment)).tools]

    assert asyncio.run(work()) == ["draw"]
