"""Meetings: conversations of the user with a worker in a project. Start with states.py.

A meeting has one run for each session, and a separate checkout. A user message is recorded before the run receives it.
The run resumes from its journal whenever the user returns.
Does not execute conversations (`runs`) or print them (`cli`).
"""
