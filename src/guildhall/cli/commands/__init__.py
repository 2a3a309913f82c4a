"""The commands, grouped by subject. `commands.tsv` says which function carries out which command.

A module is imported only when one of its commands is called.
"""
