"""Tool host: a confined Python process that executes the tools of toolboxes and packages.

`process` is the hall's side. `main` is the program inside, and `package_importer` imports packages there. The program
does not import code of the hall.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from guildhall.tools.host.process import ToolHost as ToolHost
    from guildhall.tools.host.protocol import HostSpec as HostSpec

__getattr__, __dir__ = lazy_exports(__name__, __file__)
