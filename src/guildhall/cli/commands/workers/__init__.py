"""Commands for the parts of runs: worker, memory, package, member, trust.

Does not start runs (see `cli.commands.runs`).
"""
