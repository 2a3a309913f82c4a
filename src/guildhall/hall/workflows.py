"""Workflow files in a hall: loaded as its projects see them, planned with what it knows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from guildhall.core.config import anchored
from guildhall.core.errors import NotFound, did_you_mean
from guildhall.core.paths import project_root
from guildhall.runs.plan import PlannedSeat
from guildhall.workers.trust import Trust
from guildhall.workflow.load import load
from guildhall.workflow.plan import as_far_as_known, plan
from guildhall.workflow.recognise import workflows_in
from guildhall.workflow.start import budget_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from guildhall.core.frame import Frame
    from guildhall.hall.wiring import Hall
    from guildhall.runs.model import RunRequest
    from guildhall.runs.plan import Plan
    from guildhall.workflow.interpolate import Values
    from guildhall.workflow.model import Workflow
    from guildhall.workflow.plan import WorkflowPlan


def load_workflow(hall: Hall, file: Path, frame: Frame) -> Workflow:
    """The workflow in a file, relative to where the request comes from. Workers are looked for in its own project."""
    path = frame.cwd / file.expanduser()
    if not path.exists():
        near = {one.name for one in workflows_in(path.parent)}
        raise NotFound("there is no such file", where=str(path), hint=did_you_mean(path.name, near))
    folder = path.parent.resolve()
    there = replace(frame, cwd=folder, root=project_root(folder))
    return load(path, lambda name: hall.find_worker(name, there))


async def plan_workflow(
    hall: Hall, request: RunRequest, frame: Frame, *, tag: str, params: Mapping[str, str]
) -> WorkflowPlan:
    """What could happen if a workflow were started. `request` has its file in the place of a worker."""
    workflow = load_workflow(hall, Path(request.worker), frame)
    settings = hall.settings(workflow.frame(frame))
    starting = as_far_as_known(workflow, tag=tag, params=params, frame=frame, home=hall.home, settings=settings)
    return plan(
        workflow,
        await plans_of_agents(hall, workflow, starting.values, request, frame),
        starting,
        frame=frame,
        home=hall.home,
        trust=Trust(hall.pins()),
        budget=budget_of(workflow, settings, request.budget),
    )


async def plans_of_agents(
    hall: Hall, workflow: Workflow, values: Values, request: RunRequest, frame: Frame
) -> dict[str, Plan]:
    """The plan of each agent in its seat."""
    there = workflow.frame(frame)
    model, override = (one and anchored(one, frame.cwd) for one in (request.model, request.override_model))
    found: dict[str, Plan] = {}
    for agent in workflow.agents:
        own = replace(request, worker=agent.name, budget=None, model=model, override_model=override)
        seat = PlannedSeat(around=workflow.around(agent))
        worker = replace(agent.worker, keeps=workflow.keeps(values))
        found[agent.name] = await hall.planner.plan(worker, there, own, seat=seat)
    return found
