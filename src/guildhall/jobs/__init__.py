"""Jobs: run dispatched tasks in the background, each with an id, a result and a directory of plain files.

A job is a task with one run, which the job owns. The caller keeps the id and asks for status and result later.

Above: members (offer jobs over JSON-RPC), hall and cli.
Below: activities (questions, the contract of a result), runs (do the work), workers, tools, store, core.
Does not speak JSON-RPC, and does not decide which worker a caller may use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from guildhall.jobs.assignee_tools import JobTools as JobTools
    from guildhall.jobs.directory import JobDirectory as JobDirectory
    from guildhall.jobs.model import Dispatch as Dispatch
    from guildhall.jobs.model import Job as Job
    from guildhall.jobs.model import JobDetails as JobDetails
    from guildhall.jobs.model import JobResult as JobResult
    from guildhall.jobs.model import Page as Page
    from guildhall.jobs.model import WorkerJobs as WorkerJobs
    from guildhall.jobs.service import Jobs as Jobs

__getattr__, __dir__ = lazy_exports(__name__, __file__)
