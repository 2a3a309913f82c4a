"""Meetings: conversations of the user with a worker in a project.

A meeting is one run per session, with a checkout of its own. A message of the user is recorded before the run receives
it, and the run resumes from its journal whenever the user comes back. `states.py` has the state machine. Does not
execute conversations (runs) or print them (cli).
"""
