"""The record of runs: the types of journal entries."""
