"""Record of runs: stores journal entries, runs and asks, and queries them.

Does not change the behaviour of a run.

Invariant: an entry is stored before its effect happens.
"""
