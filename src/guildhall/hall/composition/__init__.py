"""The parts of a hall and their connections. `Hall` is the only class that creates all of them.

Does not contain operations: `hall.services` implements these with the parts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.exports import lazy_exports

if TYPE_CHECKING:
    from guildhall.hall.composition.environment import Environment as Environment
    from guildhall.hall.composition.environment import MemberFolder as MemberFolder
    from guildhall.hall.composition.environment import RunPolicy as RunPolicy
    from guildhall.hall.composition.hall import Hall as Hall
    from guildhall.hall.composition.projects import ProjectServices as ProjectServices
    from guildhall.hall.composition.recovery import Recovery as Recovery
    from guildhall.hall.composition.run_services import RunServices as RunServices
    from guildhall.hall.composition.runtime_registry import RuntimeRegistry as RuntimeRegistry
    from guildhall.hall.composition.workers import WorkerServices as WorkerServices

__getattr__, __dir__ = lazy_exports(__name__, __file__)
