"""Activities: what jobs, commissions and meetings have in common. An activity is work that a run does for its owner.

Above: jobs, members, projects, which own the runs and decide how an activity ends. Below: runs, tools, core. It does
not store an activity: each owner has its own directory or rows.
"""
