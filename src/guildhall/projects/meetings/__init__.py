"""Meetings: conversations of a person with a worker in a project, over many sittings.

A meeting is one run in a seat, with a checkout of its own; what the person says is on record before the run hears it,
and the run is walked through its journal again whenever somebody comes back. Not here: how a conversation is executed
(runs), and how it looks in a terminal (cli).
"""
