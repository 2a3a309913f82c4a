"""The manager: the tools of the shipped manager worker, and the pull requests for completed work.

Does not implement commissions or meetings (`commissions`, `meetings`).
"""
