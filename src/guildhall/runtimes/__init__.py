"""Runtimes: execute a run between its model door and its tool door, in a forked process or a vendor's program.

Above: runs, which assembles the assignment and owns both doors. Also hall, workflow and cli, for selection and checks.
Below: tools (calls and results), sandbox (confinement of programs), core.
Does not import the sibling models: a runtime reaches a model only through its door.

Invariant: a runtime keeps no state that matters. After a crash it is started again, and the doors return the recorded
responses and results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from guildhall.runtimes.catalog import RUNTIMES as RUNTIMES
    from guildhall.runtimes.catalog import RuntimeInfo as RuntimeInfo
    from guildhall.runtimes.discovery import Programs as Programs
    from guildhall.runtimes.model import Assignment as Assignment
    from guildhall.runtimes.model import Attachment as Attachment
    from guildhall.runtimes.model import DoorAccess as DoorAccess
    from guildhall.runtimes.model import Doors as Doors
    from guildhall.runtimes.model import HttpDoors as HttpDoors
    from guildhall.runtimes.model import Outcome as Outcome
    from guildhall.runtimes.model import ProgramHooks as ProgramHooks
    from guildhall.runtimes.model import Runtime as Runtime
    from guildhall.runtimes.pydantic import PydanticRuntime as PydanticRuntime

__getattr__, __dir__ = lazy_exports(__name__, __file__)
