"""Git for projects: repositories, trees, worktrees, the integration branch, and snapshots of checkouts.

Does not know commissions or meetings.

Invariant: the user's checkout and branches are never changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.exports import lazy_exports

if TYPE_CHECKING:
    from guildhall.projects.git.integration import Branches as Branches
    from guildhall.projects.git.repository import Git as Git
    from guildhall.projects.git.worktrees import Worktrees as Worktrees

__getattr__, __dir__ = lazy_exports(__name__, __file__)
