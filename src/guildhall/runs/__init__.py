"""Runs: assemble, execute, record and replay executions of workers.

A run is one execution of a worker. `assembly` resolves its parts, `execution` drives it between the model door and the
tool door, `record` stores the journal, `replay` executes recorded runs offline, and `plan` lists possible effects.

Above: activities, jobs, members, projects, workflow, hall and cli, which start runs or show them.
Below: memory, models (responses), runtimes (programs that drive a run), workers, tools, sandbox, policy, store, core.
Does not schedule: the packages above decide when a run starts, and for which owner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from guildhall.runs.asks import Asks as Asks
    from guildhall.runs.execution.preparation import Grant as Grant
    from guildhall.runs.execution.runs import Runs as Runs
    from guildhall.runs.model import Answer as Answer
    from guildhall.runs.model import Ask as Ask
    from guildhall.runs.model import Bounds as Bounds
    from guildhall.runs.model import Question as Question
    from guildhall.runs.model import Run as Run
    from guildhall.runs.model import RunRequest as RunRequest
    from guildhall.runs.model import SegmentEnd as SegmentEnd
    from guildhall.runs.model import Usage as Usage
    from guildhall.runs.owner_hooks import RunHooks as RunHooks
    from guildhall.runs.plan.planner import Planner as Planner
    from guildhall.runs.purpose import Purpose as Purpose
    from guildhall.runs.record.queries import History as History

__getattr__, __dir__ = lazy_exports(__name__, __file__)
