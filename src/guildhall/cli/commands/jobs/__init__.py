"""The command that starts jobs and commissions in the background: dispatch.

Does not print jobs (see `cli.format.jobs`).
"""
