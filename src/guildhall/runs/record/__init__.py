"""The record of runs: journal entries, their SQL, and read-only queries.

Does not change what a run does. Invariant: an entry is stored before its effect happens."""
