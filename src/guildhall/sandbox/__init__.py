"""Sandbox: confines programs to the folders of a run, and gives tools file access that no link can redirect.

Above: tools, workers, runtimes, room, runs, projects and hall, which start programs and read files through it.
Below: core.
Does not decide permissions. Callers pass in the folders and the rules.

Invariant: a program or a path never reaches more than its view.
"""
