"""Runs: assemble, execute, record and replay activations of workers.

A run is a single activation of a worker. `assembly` resolves its parts, `execution` drives it between the model door
and the tool door, `record` stores the journal, `replay` executes recorded runs offline, and `plan` predicts effects.

Above: activities, jobs, members, projects, workflow, hall and cli, which start runs or show them.
Below: memory, models (answers), runtimes (programs that drive a run), workers, tools, sandbox, policy, store, core.
Does not schedule: the packages above decide when a run starts, and for which owner.
"""
