"""What executes a run between its two doors: pydantic-ai now, the CLIs of others beside it.

Above: runs, which assembles what is executed here and owns both doors. Below: tools, for the shape of calls and
results. Beside it, and never imported: models, because a runtime reaches a model through its door only. A runtime keeps
no state that matters: killed at any moment, it is started again and finds its answers behind the doors.
"""
