"""The tools in the code of a toolbox, be it one file or a package: learned in a host that can do nothing at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.errors import ToolUnavailable
from guildhall.tools.executor import describe_package, describe_toolbox
from guildhall.workers.package import PROJECT_FILE

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.tools.builtin import Surroundings
    from guildhall.tools.model import Toolbox
    from guildhall.workers.code import Code

    Known = tuple[Code, tuple[Path, ...], tuple[Path, ...]]

_MOST = 100  # toolboxes that are remembered


class Boxes:
    """Describes toolboxes, and remembers what it has learned: the same code is not asked a second time.

    What a host that can do nothing says follows from the code, and from what is installed beside Guildhall, which the
    hall itself has loaded for as long as it lives. So the code is remembered byte by byte, with what it could not see.
    """

    def __init__(self) -> None:
        self._known: dict[Known, Toolbox] = {}

    async def describe(self, code: Code, surroundings: Surroundings) -> Toolbox:
        """The tools of this code. An error is not remembered."""
        key = (code, surroundings.view.hidden, surroundings.view.shown)
        if key not in self._known:
            found = await describe(code, surroundings)
            while len(self._known) >= _MOST:
                del self._known[next(iter(self._known))]
            self._known[key] = found
        return self._known[key]


async def describe(code: Code, surroundings: Surroundings) -> Toolbox:
    """The tools, each with a handler that stands for the very text that was read."""
    if code.entry is None:
        file = code.files[0]
        return await describe_toolbox(
            code.name, file.path, surroundings, None if code.own else file.digest, file.content
        )
    try:
        return await describe_package(code.name, code.entry, code.sources(), surroundings)
    except ToolUnavailable as error:
        if error.where is None:  # of what is wrong in no line, the field is named that has led there
            error.message = f"export: {error.message}"
            error.where = str((code.folder or code.root) / PROJECT_FILE)
        elif not error.where.startswith("/"):
            error.where = str(code.root / error.where)
        raise
