"""Workflow files: load a workflow, check that it may start, plan it, and prepare or replay its run.

Does not launch runs (`run_services`). Imported when it is needed, because planning imports the model providers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from guildhall.core.errors import Conflict, NotFound, NotTrusted, UsageError
from guildhall.core.paths import project_root
from guildhall.core.text_checks import did_you_mean
from guildhall.runs.assembly.preflight import raise_problems
from guildhall.runs.plan.planner import TeamContext
from guildhall.workers.code_trust import Trust
from guildhall.workflow import records
from guildhall.workflow.agent_steps import room_tool_set
from guildhall.workflow.loader import check_trust, load
from guildhall.workflow.plan import WorkflowPlan, make_plan, planned_start
from guildhall.workflow.replay import WorkflowReplays
from guildhall.workflow.start_values import anchor_models, bind_params, check_same_file, team_budget
from guildhall.workflow.target import find_workflow_files

if TYPE_CHECKING:
    from guildhall.core.request_frame import Frame
    from guildhall.hall.composition.hall import Hall
    from guildhall.hall.composition.run_services import RunServices
    from guildhall.runs.execution.preparation import Prepared
    from guildhall.runs.model import RunRequest
    from guildhall.runs.plan.model import Plan
    from guildhall.runs.replay.replay import ReplayResult
    from guildhall.workflow.instance import Start
    from guildhall.workflow.model import Workflow
    from guildhall.workflow.placeholders import Values


def load_workflow(hall: Hall, file: str | Path, frame: Frame) -> Workflow:
    """Load the workflow in a file, relative to the request's folder. Its workers are searched in its own project."""
    try:
        path = frame.cwd / Path(file).expanduser()
        exists = path.exists()
    except (OSError, RuntimeError, ValueError) as error:  # the name is too long, has an unknown ~user or a NUL
        raise UsageError(f"invalid path {str(file)[:100]!r}: {error}") from None
    if not exists:
        neighbours = {file.name for file in find_workflow_files(path.parent)}
        hint = did_you_mean(path.name, neighbours) or "Correct the path of the workflow file."
        raise NotFound("file not found", where=str(path), hint=hint)
    folder = path.parent.resolve()
    workflow_frame = replace(frame, cwd=folder, root=project_root(folder))
    return load(path, lambda name: hall.workers.find(name, workflow_frame))


async def prepare_workflow(hall: Hall, start: Start, request: RunRequest, frame: Frame) -> tuple[RunServices, Prepared]:
    """Create the run of a workflow. Return it with the services of the database that it is in."""
    workflow = load_workflow(hall, start.file, frame)
    bind_params(workflow, start.params)  # raises before the user is asked to trust a workflow that cannot start
    _check_trust(hall, workflow, frame)
    plan = await _plan(hall, workflow, request, frame, tag=start.tag, params=start.params)
    raise_problems(plan.problems, workflow.place)
    services = await hall.workflow_databases.services_for_start(workflow, start, frame)
    return services, await services.workflows.prepare(start, workflow, request, frame)


def _check_trust(hall: Hall, workflow: Workflow, frame: Frame) -> None:
    """Raise NotTrusted if a workflow or the code of an agent is not trusted as it was loaded."""
    if hall.environment.policy.runs_setup_commands:
        check_trust(workflow, hall.workers.preflight.load_trust(), hall.home)
    frame = workflow.frame(frame)
    for agent in workflow.agents:
        problems = hall.workers.preflight.find_problems(agent.worker, frame, script=False)
        raise_problems([error for error in problems if isinstance(error, NotTrusted)], agent.worker.place)
        hall.workers.check_trust(agent.worker, frame)


async def plan_workflow(
    hall: Hall, request: RunRequest, frame: Frame, *, tag: str, params: Mapping[str, str]
) -> WorkflowPlan:
    """Return the plan of a workflow. `request.worker` is its file."""
    workflow = load_workflow(hall, request.worker, frame)
    plan = await _plan(hall, workflow, request, frame, tag=tag, params=params)
    key = (str(workflow.frame(frame).root), workflow.name, tag)
    try:
        check_same_file(hall.main.store.read(lambda connection: records.newest_instance(connection, *key)), workflow)
    except Conflict as error:
        return replace(plan, problems=(*plan.problems, error))
    return plan


async def _plan(
    hall: Hall, workflow: Workflow, request: RunRequest, frame: Frame, *, tag: str, params: Mapping[str, str]
) -> WorkflowPlan:
    settings = hall.settings(workflow.frame(frame))
    values, problems = planned_start(workflow, tag=tag, params=params, frame=frame, home=hall.home, settings=settings)
    return make_plan(
        workflow,
        await plans_of_agents(hall, workflow, values, request, frame),
        values,
        params=params,
        problems=problems,
        frame=frame,
        home=hall.home,
        trust=Trust(hall.workers.pins()),
        budget=team_budget(workflow, settings, request.budget),
    )


async def plans_of_agents(
    hall: Hall, workflow: Workflow, values: Values, request: RunRequest, frame: Frame
) -> dict[str, Plan]:
    """Return the plan of each agent by its name."""
    workflow_frame, request = workflow.frame(frame), anchor_models(request, frame)
    plans: dict[str, Plan] = {}
    for agent in workflow.agents:
        agent_request = replace(request, worker=agent.name, budget=None)
        room = room_tool_set(workflow, agent.name, ())
        team = TeamContext(
            tools=room.tools,
            deferred=room.deferred,
            around=workflow.other_capabilities(agent),
            use="name" if agent.wakeup is None else "schedule",
            has_budget=request.budget is not None or workflow.budget is not None,
        )
        worker = replace(agent.worker, workflow_paths=workflow.protected_paths(values))
        plans[agent.name] = await hall.workers.planner.plan(worker, workflow_frame, agent_request, team=team)
    return plans


async def replay(services: RunServices, run: str, frame: Frame) -> ReplayResult:
    """Replay the run of a worker or a workflow, with all runs that it called."""
    if services.history.workflow_of(run) is None:
        return await services.recordings.replay(run, frame)
    replays = WorkflowReplays(
        store=services.store,
        history=services.history,
        recordings=services.recordings,
        find=services.workers.find,
        settings=services.environment.settings,
    )
    return await replays.replay(run, frame)
