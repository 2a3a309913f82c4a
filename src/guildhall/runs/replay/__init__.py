"""Replay: uses recorded runs again, for comparison, as a fork, as answers for another run, and as a test script.

Does not call a model or execute a tool of a recorded run.
"""
