"""Jobs: run dispatched tasks in the background, each with an id, a result and a directory of plain files.

A job is a run whose owner is the job. The caller keeps the id and asks for status and result later.

Above: members (offer jobs over JSON-RPC), hall and cli.
Below: activities (questions, the contract of a result), runs (do the work), workers, tools, store, core.
Does not speak JSON-RPC and does not decide which worker a caller may use.
"""
