"""Examples: the stories that `guild demo` plays, and in `data` the files of the examples that `guild init` writes.

Does not parse the commands (see `cli.commands.setup`).
"""
