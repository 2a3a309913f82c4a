"""Printing runs, rooms, jobs, commissions, meetings and workflows. Reads from the hall and never changes anything."""
