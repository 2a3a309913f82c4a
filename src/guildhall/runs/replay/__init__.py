"""Recorded runs used again: replay, fork, answers for another run, export as a script.

Does not call a model or execute a tool of a recorded run."""
