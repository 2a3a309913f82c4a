"""MCP client: connects a run to the MCP servers that its worker names.

Does not serve MCP (see `guildhall.rpc` and `guildhall.hall.doors`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from guildhall.tools.mcp.client import Servers as Servers
    from guildhall.tools.mcp.model import ServerSpec as ServerSpec
    from guildhall.tools.mcp.model import tool_name as tool_name

__getattr__, __dir__ = lazy_exports(__name__, __file__)
