"""Benchmarks: compare Guildhall with floors and peers that are measured in the same run.

`python -m bench [NAME...]`. Each metric is a module `m<number>_<name>.py` with a function `metrics(scratch)`.
"""
