"""Commissions: tasks in a project that a worker does unattended, in a separate checkout. Start with states.py.

A commission has a draft, and a run for each attempt. A submitted result must fulfil the contract before the work is
merged into the integration branch.
Does not execute the run (`runs`) and does not call git (`git`).
"""
