"""Memory: stores notes that workers keep between runs, as plain files in three scopes, and logs every change.

Above: runs (adds memory to prompts and starts compactions), hall and cli (the `guild memory` commands).
Below: workers (own the folders), tools (definitions of the memory tools), store (the log), core.
Does not call models: the caller passes in the model call of a compaction. Does not import the sibling packages room,
models and runtimes.

Invariant: the files are the memory. The log only explains how the files came about, and runs never read it.
"""
