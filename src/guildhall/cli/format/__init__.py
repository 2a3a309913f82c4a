"""Output formats: print runs, rooms, jobs, commissions, meetings and workflows.

Some modules also wait for the printed object. They read from the hall and never change anything.
"""
