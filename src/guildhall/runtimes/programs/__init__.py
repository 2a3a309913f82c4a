"""Runtimes that are programs: Claude Code, Codex, OpenCode and Cursor, each with a driver, in a sandbox.

Does not answer model calls: a program reaches the hall's two doors and nothing else."""
