"""Workflows: a YAML file that seats agents in a room, with a setup before and a kickoff to begin with.

Above: the hall, which offers the verbs. Below: runs (each activation of an agent is one), room, workers, tools, store.
Not a process and not an executor: it says who is to run and when; what runs is assembled and journalled in `runs`.
"""
