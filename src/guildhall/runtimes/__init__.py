"""Runtimes: execute a run between its model door and its tool door, in a forked process or a vendor's program.

Above: runs, which assembles the assignment and owns both doors. Also hall, workflow and cli, for selection and checks.
Below: tools (calls and results), sandbox (confinement of programs), core.
Does not import the sibling models: a runtime reaches a model only through its door.

Invariant: a runtime keeps no state that matters. After a kill it is started again, and the doors return the recorded
answers.
"""
