"""Tools: their definition, the gate that every call passes, their execution, and the built-in tools.

Above: rpc, workers, memory, room, runtimes, runs, activities, jobs, members, projects, workflow, hall and cli.
Below: sandbox, policy and core.
Not a place for the tools of a domain. A package that offers tools to workers has its own `tools.py`.
"""
