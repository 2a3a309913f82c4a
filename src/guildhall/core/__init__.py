"""Core: the errors, events, settings, paths and file helpers that every package uses.

Above: all other packages.
Below: nothing but the standard library, pydantic and ruamel.yaml (imported late).
Not a place for general helpers. The list of modules is closed, and an addition needs a decision record.
"""
