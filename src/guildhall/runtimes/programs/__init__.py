"""Program runtimes: execute runs with Claude Code, Codex, OpenCode or Cursor, each with a driver, in a sandbox.

Does not answer model calls: `models.passthrough` does. Except for Cursor, a program reaches only the hall's two doors.
"""
