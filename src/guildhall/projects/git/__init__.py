"""Git for projects: repositories, trees, worktrees, the integration branch, and snapshots of checkouts.

Does not know commissions or meetings.

Invariant: the user's checkout and branches are never changed.
"""
