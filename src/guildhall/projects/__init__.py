"""Projects: the user's repositories that the guild works for, and how it works there without being in the way.

Above: the hall, which offers the verbs, and workflows. Below: members, jobs, runs (a commission is a run with a seat),
workers, tools, store, core. Not here: what a worker does in its worktree; that is the run's. What is called git here is
the program; nothing of a repository is executed.
"""
