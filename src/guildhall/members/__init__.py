"""Guild members: plug-ins in folders of their own, with tools, workers or both, spoken to over HTTP.

Above: the hall, which offers the verbs and lets workers reach the members that they declare. Below: jobs (what a member
with workers keeps), runs (what a worker is given), workers (trust), tools (MCP), core. Not aware of what a member does
inside: it is a process with an address and a secret, and its jobs are its own.
"""
