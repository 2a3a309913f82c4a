"""Projects: the user's git repositories that workers change, through commissions and meetings.

Workers work in checkouts below the home. Their work is merged into the integration branch `claude/main`. The user
merges `claude/main` into the user's own branch.

`git` has the repositories and checkouts, `commissions` the unattended work, `meetings` the conversations, and `manager`
the tools of the manager.

Above: hall and cli, which offer the operations and commands. Below: activities (questions, contracts), runs (the run of
a commission or meeting), models, workers, tools, sandbox, store, core.
Does not execute workers (`runs`). Git never executes anything of a repository or changes the user's branches.
"""
