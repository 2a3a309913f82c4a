"""Commands: the functions behind the commands of `guild`, grouped by subject.

`commands.tsv` names the function of each command. A module is not imported before a command in it is called.
"""
