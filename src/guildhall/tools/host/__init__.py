"""Tool host: a confined Python process that executes the tools of toolboxes and packages.

`process` is the hall's side, `main` the program inside, `modules` loads packages in it. Code of the hall is not
imported there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.exports import lazy_exports

if TYPE_CHECKING:
    from guildhall.tools.host.process import ToolHost as ToolHost
    from guildhall.tools.host.protocol import HostSpec as HostSpec

__getattr__, __dir__ = lazy_exports(__name__, __file__)
