"""Remote procedure calls: HTTP, JSON-RPC 2.0 and the messages of MCP, as servers in this package read and answer them.

Above: workers, runs, members and the hall, which say what a request does. Below: tools, whose types are shown over MCP.
It does not know who a caller is beyond a token, and not what a method does. The client side of MCP is in tools.
"""
