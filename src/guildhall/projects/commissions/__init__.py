"""Commissions: tasks in a project that a worker does unattended, in a separate checkout. Start with states.py.

A commission is a draft, and each attempt at it is a run. A submitted result must meet its contract before the work is
merged into the integration branch.
Does not execute the run (`runs`) and does not call git (`git`).
"""
