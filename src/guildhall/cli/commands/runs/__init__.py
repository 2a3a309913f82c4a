"""Commands that start, follow, control, inspect and repeat runs.

Does not format runs (see `cli.format.runs`).
"""
