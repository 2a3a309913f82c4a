"""The client of MCP servers that a worker names.

Does not serve MCP; see `guildhall.rpc` and `guildhall.hall.doors`."""
