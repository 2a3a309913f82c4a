"""Commissions: tasks in a project that a worker does unattended, in a separate checkout. Start with states.py.

A commission is a draft, and each attempt at it is a run. A submitted result must meet its contract before the work is
merged into the integration branch.
Does not execute the run (`runs`) and does not call git (`git`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.exports import lazy_exports

if TYPE_CHECKING:
    from guildhall.projects.commissions.context import CommissionContext as CommissionContext
    from guildhall.projects.commissions.model import Commission as Commission
    from guildhall.projects.commissions.model import CommissionDetails as CommissionDetails
    from guildhall.projects.commissions.model import Draft as Draft
    from guildhall.projects.commissions.service import Commissions as Commissions
    from guildhall.projects.commissions.service import recorded_hooks as recorded_hooks
    from guildhall.projects.commissions.states import Status as Status

__getattr__, __dir__ = lazy_exports(__name__, __file__)
