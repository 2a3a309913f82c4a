"""What a team shares: a channel with inboxes, documents, proposals, resources. One room is one `workflow:tag`.

Above: the workflow, which seats agents, wakes them when there is mail and ends their runs; the hall, for the person's
commands. Below: tools (the room tools), store, core. Beside it, and never imported: memory, models and runtimes. Not
aware of runs or workflows: a run is a text here, and who is woken, when and how is not its business.
"""
