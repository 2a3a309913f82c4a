"""Activities: share questions and the contract of a result between jobs, commissions and meetings.

An activity is work that a run does for its owner.

Above: jobs, members, projects, which own the runs and decide how an activity ends, and cli.
Below: runs, tools, store, core.
Does not store an activity: each owner has its own directory or rows.
"""
