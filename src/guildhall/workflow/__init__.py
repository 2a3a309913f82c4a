"""Workflows: YAML files that define a team of agents, and the scheduler that runs the team in a shared room.

A workflow is a run without a model. Its phases are setup commands, the election of the document owner, the kickoff
message, and turns of the agents until no agent can make progress. Each turn of an agent is a run below it.

Above: cli and hall, which offer the commands and operations. Below: runs (the turns of agents), room (the channel,
documents and votes), models, runtimes, workers, tools, store, core.
Does not execute or journal a turn (`runs`), and does not store messages or documents (`room`).

Invariant: the database decides the next step of every agent. A wake-up is only a hint to read it.
"""
