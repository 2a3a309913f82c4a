"""One module for each command, or for a few that belong together.

Each has `arguments(parser)`, which adds what the command understands, and `main(args, screen)`, which does it and
returns the exit code. They are imported only when they are used.
"""
