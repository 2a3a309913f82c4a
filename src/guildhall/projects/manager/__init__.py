"""The manager: the tools of the shipped manager worker, and the pull requests for completed work.

Does not execute commissions or meetings: the tools call the services in `commissions` and `meetings`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.exports import lazy_exports

if TYPE_CHECKING:
    from guildhall.projects.manager.pull_request import PullRequests as PullRequests
    from guildhall.projects.manager.pull_request import Review as Review
    from guildhall.projects.manager.tools import ManagerContext as ManagerContext
    from guildhall.projects.manager.tools import is_manager as is_manager
    from guildhall.projects.manager.tools import manager_tools as manager_tools

__getattr__, __dir__ = lazy_exports(__name__, __file__)
