"""Output formats: print runs, rooms, jobs, commissions, meetings and workflows.

Some functions wait for a change before they print. Does not change anything in the hall.
"""
