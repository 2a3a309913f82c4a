"""A run: one activation of one worker, assembled, executed between the two doors, journalled.

Above: the hall, and later jobs, workflows, commissions, which all make runs. Below: models and runtimes (where answers
come from, what executes between the doors), workers, tools, policy, store. Not a scheduler: a run starts when it is
told to and ends; who starts it, and when, is decided above.
"""
