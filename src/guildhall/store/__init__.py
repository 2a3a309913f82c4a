"""Store: the SQLite database of a home, with its tables, its transactions and its creation.

Above: hall, workflow, projects, jobs, activities, runs, memory, room and workers, each with its SQL in `records.py`.
Below: core.
Does not interpret rows. The meaning of a run or an ask is not known here.
"""
