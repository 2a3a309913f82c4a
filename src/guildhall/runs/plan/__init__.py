"""Plan: predicts the possible effects of a worker before it runs, and renders them for the user.

Does not start anything that could have an effect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from guildhall.runs.plan.model import ExecutedCode as ExecutedCode
    from guildhall.runs.plan.model import Plan as Plan
    from guildhall.runs.plan.model import PlannedTool as PlannedTool
    from guildhall.runs.plan.planner import Planner as Planner
    from guildhall.runs.plan.planner import TeamContext as TeamContext

__getattr__, __dir__ = lazy_exports(__name__, __file__)
