"""The tools in the code of a toolbox, be it one file or a package: learned in a host that can do nothing at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.errors import ToolUnavailable
from guildhall.tools.executor import describe_package, describe_toolbox

if TYPE_CHECKING:
    from guildhall.tools.builtin import Surroundings
    from guildhall.tools.model import Toolbox
    from guildhall.workers.code import Code


async def describe(code: Code, surroundings: Surroundings) -> Toolbox:
    """The tools, each with a handler that stands for the very text that was read."""
    if code.entry is None:
        file = code.files[0]
        return await describe_toolbox(code.name, file.path, surroundings, None if code.own else file.digest)
    try:
        return await describe_package(code.name, code.entry, code.sources(), surroundings)
    except ToolUnavailable as error:
        if error.where is not None and not error.where.startswith("/"):
            error.where = str(code.root / error.where)
        raise
