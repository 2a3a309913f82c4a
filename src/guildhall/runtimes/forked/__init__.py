"""The pydantic runtime in a process of its own, forked from a warm parent.

`client` and `runtime` are the hall's side, `server` and `child` the other processes, `protocol` what they exchange."""
