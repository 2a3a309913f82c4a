"""Commissions: pieces of work on a project that a worker does alone, in a git worktree. Start with states.py."""
