"""Rooms: the state that the agents of a team share: channel, inboxes, documents, proposals and resources.

A room belongs to a workflow and a tag. Every change is an operation with a name, a transaction and a log entry.

Above: workflow, which starts the runs of agents when they have mail; hall and cli, for the commands of the user.
Below: tools (the room tools), sandbox (the files of documents), store, core.
Does not know runs or workflows: a run is only an id here. Does not start agents; it only announces new mail. Never
imports its siblings memory, models and runtimes.
"""
