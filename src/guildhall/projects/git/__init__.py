"""Git for projects: repositories, trees, worktrees, the integration branch, and snapshots of checkouts.

Does not import commissions or meetings.

Invariant: the user's checkouts and branches are not changed.
"""
