"""Confinement: programs that see only the folders of a run, and file access that no link can lead astray.

Above: tools, which start programs and read files through it. Below: policy, store, core.
Does not decide what is permitted: callers pass in the folders and the rules.

Invariant: a program or a path never reaches more than the view that it was given."""
