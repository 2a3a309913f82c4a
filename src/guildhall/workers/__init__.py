"""Workers: worker files and packages, with their format, loading, lookup, life cycle and trust.

Above: memory, runs, jobs, members, projects, workflow, hall and cli.
Below: tools, sandbox, policy, store and core.
A worker is a definition, not a process and not a run. Package `runs` assembles and executes it.
"""
