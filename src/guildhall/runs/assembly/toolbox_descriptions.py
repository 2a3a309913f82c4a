"""Toolbox descriptions: load the code of toolboxes to describe their tools, and cache the descriptions.

Does not check trust: `runs.assembly.preflight` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.errors import ToolUnavailable
from guildhall.tools.executor import ToolEnvironment, describe_package, describe_toolbox
from guildhall.workers.package import PROJECT_FILE

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.tools.model import Toolbox
    from guildhall.workers.code_trust import Code

    CacheKey = tuple[Code, tuple[Path, ...], tuple[Path, ...]]

_MAX_CACHED = 100


class ToolboxCache:
    """Describes toolboxes, and caches the descriptions.

    A description depends on the bytes of the code, on the folders that the code can see, and on the installed packages,
    which do not change while a hall runs.
    """

    def __init__(self) -> None:
        self._cached: dict[CacheKey, Toolbox] = {}

    async def describe(self, code: Code, environment: ToolEnvironment) -> Toolbox:
        key = (code, environment.view.hidden, environment.view.shown)
        if key not in self._cached:
            toolbox = await describe_code(code, environment)
            while len(self._cached) >= _MAX_CACHED:
                del self._cached[next(iter(self._cached))]
            self._cached[key] = toolbox
        return self._cached[key]


async def describe_code(code: Code, environment: ToolEnvironment) -> Toolbox:
    """Return the tools of this code. Their handlers are bound to the bytes that were read."""
    if code.entry is None:
        file = code.files[0]
        pinned = None if code.is_own else file.digest
        return await describe_toolbox(code.name, file.path, environment, pinned, file.content)
    try:
        return await describe_package(code.name, code.entry, code.sources(), environment)
    except ToolUnavailable as error:
        if error.where is not None:
            raise ToolUnavailable(error.message, where=str(code.root / error.where), hint=error.hint) from error
        place = str((code.folder or code.root) / PROJECT_FILE)
        raise ToolUnavailable(f"export: {error.message}", where=place, hint=error.hint) from error
