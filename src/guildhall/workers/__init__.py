"""Workers: their files, where they are found, how they live.

Above: everything that makes runs. Below: tools (folders), policy (rules), store (the lock table), core.
Not a process and not a run: a worker is a definition; what executes it is assembled in `runs`.
"""
