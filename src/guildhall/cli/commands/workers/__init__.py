"""Commands for the parts of runs: worker, memory, package, member, check, trust.

Does not start runs (see `cli.commands.runs`).
"""
