"""Commands for git repositories: project, commission, meet, meeting.

Does not run git (see `guildhall.projects`).
"""
