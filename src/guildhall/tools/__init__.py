"""Tools: their definition, the gate that every call passes, their execution, and the built-in tools.

Above: rpc, workers, memory, room, runtimes, runs, activities, jobs, members, projects, workflow, hall and cli.
Below: sandbox, policy and core.
Not a place for the tools of a domain. A package that offers tools to workers has its own `tools.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from guildhall.tools.call_router import BUILT_IN as BUILT_IN
    from guildhall.tools.call_router import ToolEnvironment as ToolEnvironment
    from guildhall.tools.definition import bind_tools as bind_tools
    from guildhall.tools.definition import invoke as invoke
    from guildhall.tools.definition import tool as tool
    from guildhall.tools.gate import CallLedger as CallLedger
    from guildhall.tools.gate import Gate as Gate
    from guildhall.tools.model import Execute as Execute
    from guildhall.tools.model import Tool as Tool
    from guildhall.tools.model import Toolbox as Toolbox
    from guildhall.tools.model import ToolCall as ToolCall
    from guildhall.tools.model import ToolResult as ToolResult

__getattr__, __dir__ = lazy_exports(__name__, __file__)
