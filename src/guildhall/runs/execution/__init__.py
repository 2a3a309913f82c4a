"""Execution: prepares runs, launches them, drives them between the two doors, parks and resumes them.

Does not replay recorded runs: `guildhall.runs.replay` does.
"""
