"""Commissions: a piece of work on a project that a worker does alone, in a checkout of its own. A file a transition."""
