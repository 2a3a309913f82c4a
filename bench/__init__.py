"""How fast Guildhall is, as ratios against what the machine itself can do, measured side by side in one run.

`python -m bench [NAME...]`. Each metric is a module `m<number>_<name>.py` with a function `metrics(scratch)`.
"""
