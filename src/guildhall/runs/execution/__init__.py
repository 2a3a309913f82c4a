"""Execution: runs are prepared, launched, executed between the two doors, parked and resumed.

Does not read recorded runs again; see `guildhall.runs.replay`."""
