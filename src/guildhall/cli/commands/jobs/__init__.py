"""Commands for jobs in the background: dispatch, job, rm.

Does not print jobs (see `cli.format.jobs`).
"""
