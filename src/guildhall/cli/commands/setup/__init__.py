"""Commands for a new installation: init, demo, doctor, completion.

Does not contain the examples (see `cli.demo`).
"""
