"""The JSON Schema of a model that a project defines in Python, learned without running any of it in the hall."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from guildhall.tools.host import HostSpec, ToolHost
from guildhall.tools.model import View

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


async def schema_of(reference: str, sources: Mapping[str, str], cwd: Path) -> Mapping[str, Any]:
    """The schema of `package.module:Model`, as a host that can do nothing at all has found it.

    `sources` is the text of every file of the package, by its path from the project: nothing else can be imported.
    """
    host = ToolHost(HostSpec(view=View(cwd=cwd), schema_of=reference), sources=sources)
    try:
        return await host.schema()
    finally:
        await host.close()
