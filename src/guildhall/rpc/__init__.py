"""Remote procedure calls: the server side of HTTP, JSON-RPC 2.0 and MCP.

Above: cli, hall and members, which implement the methods.
Below: tools, whose definitions are listed over MCP, and core.
Does not identify callers except by a token. The client side of MCP is in `tools.mcp`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from guildhall.rpc.asgi_requests import Headers as Headers
    from guildhall.rpc.asgi_requests import HttpError as HttpError
    from guildhall.rpc.jsonrpc import RpcError as RpcError
    from guildhall.rpc.listener import Listener as Listener
    from guildhall.rpc.mcp_http_server import Endpoint as Endpoint
    from guildhall.rpc.mcp_http_server import Offer as Offer
    from guildhall.rpc.mcp_messages import Request as Request
    from guildhall.rpc.mcp_stdio_server import StdioServer as StdioServer

__getattr__, __dir__ = lazy_exports(__name__, __file__)
