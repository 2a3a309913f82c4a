"""Policy: decides by capabilities and rules if a tool call is allowed, refused or needs approval.

Above: cli, hall, runs, workers and tools, whose gate asks for every call.
Below: nothing.
Pure functions on plain values. Policy never opens a file, asks a user or stores state.
"""
