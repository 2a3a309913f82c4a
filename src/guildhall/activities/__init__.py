"""Activities: share questions, the contract of a result and the owner of runs between jobs, commissions and meetings.

An activity is work that a run does for its owner.

Above: jobs, members, projects, which own the runs and decide how an activity ends, and cli.
Below: runs, tools, store, core.
Does not store an activity: each owner has its own directory or rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from guildhall.activities.contract import AskedQuestion as AskedQuestion
    from guildhall.activities.contract import Decision as Decision
    from guildhall.activities.contract import check_output as check_output
    from guildhall.activities.contract import with_output_schema as with_output_schema
    from guildhall.activities.questions import QuestionChannel as QuestionChannel
    from guildhall.activities.questions import ResumeTimers as ResumeTimers
    from guildhall.activities.questions import call_with_answers as call_with_answers

__getattr__, __dir__ = lazy_exports(__name__, __file__)
