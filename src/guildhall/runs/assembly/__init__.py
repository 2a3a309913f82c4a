"""Assembly: resolves a worker, a request and a frame into the exact parts of a run.

Does not execute the run and does not record it: `guildhall.runs.execution` does.
"""
