"""Models: answer model calls from providers, scripts and recordings, behind the door that every call passes.

Above: runs, which gives the door its ledger. Also hall, workflow, projects and cli, for model names, keys and scripts.
Below: core.
Does not read worker files: callers pass in a model name and messages.
Does not import the sibling runtimes, which reaches a model only through the door.
"""
