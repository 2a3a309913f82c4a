"""Commands that start and delete jobs and commissions: dispatch, rm.

Does not print jobs (see `cli.format.jobs`).
"""
