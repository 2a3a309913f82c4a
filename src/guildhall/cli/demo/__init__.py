"""Examples: the files that `guild init` writes, and the stories that `guild demo` plays.

The files of an example are in `data`. Does not parse the commands (see `cli.commands.setup`).
"""
