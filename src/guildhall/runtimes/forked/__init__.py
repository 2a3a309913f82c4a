"""Forked runtime: executes each run with the pydantic runtime in a process that a warm fork server forks.

`client` and `runtime` work in the hall, `server` and `child` in the other processes. `protocol` defines their messages.
Does not execute vendors' programs: `runtimes.programs` does.
"""
