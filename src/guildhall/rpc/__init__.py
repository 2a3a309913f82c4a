"""Remote procedure calls: the server side of HTTP, JSON-RPC 2.0 and MCP messages.

Above: cli, hall and members, which carry out the requests.
Below: tools, whose types are shown over MCP, and core.
Does not know callers beyond a token, and does not implement methods. The client side of MCP is in `tools.mcp`.
"""
