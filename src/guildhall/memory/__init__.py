"""Memory: notes that workers keep between runs, as plain files in three scopes, with a log of every change.

Above: runs, which adds memory to prompts and runs compactions; the hall, for the `guild memory` commands.
Below: workers (whose memory it is), tools (the memory tools), store (the log), core.
Does not call models: the model call of a compaction is passed in, so the siblings models and runtimes are not imported.

Invariant: the files are the memory. The log only explains how they came about, and runs never read it.
"""
