"""MCP client: connects a run to the MCP servers that its worker names.

Does not serve MCP (see `guildhall.rpc` and `guildhall.hall.doors`).
"""
