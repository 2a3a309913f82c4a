"""The process of a hall: starts and stops it, and serves its HTTP API and the `worker/*` methods.

Does not implement operations: `hall.services` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.exports import lazy_exports

if TYPE_CHECKING:
    from guildhall.hall.server.api import Api as Api
    from guildhall.hall.server.job_rpc_methods import HallJobs as HallJobs
    from guildhall.hall.server.job_rpc_methods import WorkerMethods as WorkerMethods
    from guildhall.hall.server.process import HallProcess as HallProcess

__getattr__, __dir__ = lazy_exports(__name__, __file__)
