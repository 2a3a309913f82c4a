"""Commands for long-lived workflows and their rooms: start, send, schedule, doc, proposals.

Does not stop a workflow (see `cli.commands.runs.stop`).
"""
