"""Commands for the process of the hall and for programs that use it: hall, mcp, serve.

Does not start the hall for other commands (see `cli.command`).
"""
