"""The manager: the tools of the shipped manager worker, and the pull requests for completed work.

Does not execute commissions or meetings: the tools call the services in `commissions` and `meetings`.
"""
