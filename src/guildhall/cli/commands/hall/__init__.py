"""Commands for the process of the hall and for programs that use the hall: hall, mcp.

Does not start the hall for other commands (see `cli.command`).
"""
