"""Commands for git repositories: project, edit, retry, meet.

Does not run git (see `guildhall.projects`).
"""
