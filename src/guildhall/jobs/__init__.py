"""Jobs: what is handed over and held by its id. One task, one result, a directory of plain files.

Above: members, which speak of jobs over the wire, and the hall. Below: runs, which do the work: a job is a run with a
seat. Not here: JSON-RPC, and whose worker it is.
"""
