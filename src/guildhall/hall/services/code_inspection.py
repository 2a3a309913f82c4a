"""Code inspection: lists the code that a folder, worker, workflow or test would execute, with its trust.

Does not store pins (`trust`). Imported when it is needed, because it loads workers and workflows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from guildhall.core import yaml
from guildhall.core.errors import GuildError, InvalidFile, NotFound, UsageError
from guildhall.core.paths import project_root
from guildhall.hall.client.model import TrustReport
from guildhall.hall.composition.workflow_preparation import load_workflow, plans_of_agents
from guildhall.hall.testrun.files import TESTS, code_of_test, has_test, runs_programs, tests_in
from guildhall.members.registry import member_code
from guildhall.runs.model import RunRequest
from guildhall.runs.plan.model import ExecutedCode, Plan
from guildhall.workers.code_trust import Code, Trust, project_toolboxes
from guildhall.workers.loader import WORKER_SUFFIXES
from guildhall.workers.model import WORKERS, Worker
from guildhall.workflow.loader import setup_status
from guildhall.workflow.plan import planned_start
from guildhall.workflow.target import MAIN, find_workflow_files, is_workflow_file

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.request_frame import Frame
    from guildhall.hall.composition.hall import Hall
    from guildhall.models.scripted.test_section import Case


async def _plan_test(case: Case, root: Path, hall: Hall, frame: Frame) -> tuple[list[Plan], bool]:
    """Return the plans of a test's worker or agents, and True if the test may run programs.

    A test that contains a worker file may run programs. A test that cannot be planned has no plans.
    """
    from guildhall.core.redaction import Redactor
    from guildhall.runs.replay.portable_text import Normalizer

    frame = replace(frame, cwd=root / case.folder, root=root)
    name = str(Normalizer(root, hall.home.path, Redactor(hall.environ)).restore(case.subject))
    has_worker_file = any(path == name or path.startswith(f"{WORKERS}/") for path in case.files)
    try:
        if case.workflow is None:
            plans = [await hall.workers.planner.plan(hall.workers.find(name, frame), frame)]
        else:
            workflow = load_workflow(hall, root / name, frame)
            frame = workflow.frame(frame)
            plans = [await hall.workers.planner.plan(agent.worker, frame) for agent in workflow.agents]
    except GuildError:
        return [], has_worker_file
    return plans, has_worker_file or any(map(runs_programs, plans))


async def inspect_worker(hall: Hall, worker: Worker, frame: Frame) -> TrustReport:
    """Return the code of a worker and of all workers that it may call."""
    plan = await hall.workers.planner.plan(worker, frame)
    _, problems = hall.workers.preflight.find_code(worker, frame)
    return TrustReport(
        folder=worker.resource_folder, code=_unique(_foreign_code([plan])), plans=[plan], problems=problems
    )


async def inspect_folder(hall: Hall, at: Path | None, frame: Frame) -> TrustReport:
    """Return the code of a folder: its toolboxes and members, the code of its workers, setups and tests.

    `at` may be the file of a worker, of a workflow, or of a test.
    """
    if at is None:
        return await _inspect_project(hall, frame)
    at = frame.cwd / at
    if not at.exists():
        raise NotFound(f"path not found: {at}", hint="Pass a folder, or the file of a worker, workflow or test.")
    if at.name.endswith(WORKER_SUFFIXES) and at.is_file():
        if is_workflow_file(at):
            return await inspect_workflow(hall, at, frame)
        if has_test(at):
            return await inspect_test(hall, at, frame)
        return await inspect_worker(hall, hall.workers.find(str(at), frame), frame)
    if not at.is_dir():
        message = f"cannot inspect {at}: not a folder, worker file, workflow file or test file"
        raise UsageError(message, hint="Pass a folder, or a file that ends in .yaml, .yml or .json.")
    return await _inspect_project(hall, replace(frame, cwd=at.resolve(), root=project_root(at.resolve())))


async def _inspect_project(hall: Hall, frame: Frame) -> TrustReport:
    folder = frame.root
    plans: list[Plan] = []
    problems: list[GuildError] = []
    for worker in _workers(hall, frame):
        plan = await hall.workers.planner.plan(worker, frame)
        if _foreign_code([plan]):
            plans.append(plan)
        problems += hall.workers.preflight.find_code(worker, frame)[1]
    members, invalid_members = _members(hall, frame)
    # The user has put the toolboxes of the home there, so they need no trust.
    is_home = folder.resolve() == hall.home.path.resolve()
    toolboxes, invalid_toolboxes = ([], []) if is_home else project_toolboxes(folder)
    tests: list[ExecutedCode] = []
    for file in tests_in(folder / TESTS):
        try:
            report = await inspect_test(hall, file, frame)
        except GuildError:  # an invalid test executes nothing
            continue
        tests += [code for code in report.code if code.kind == "test"]
        plans += [plan for plan in report.plans if plan.worker not in [known.worker for known in plans]]
    setups: list[ExecutedCode] = []
    for file in find_workflow_files(folder):
        try:
            report = await inspect_workflow(hall, file, frame)
            setups += [code for code in report.code if code.kind == "workflow"]
        except GuildError as error:
            problems.append(error)
    code = [*_with_trust(hall, (*toolboxes, *members)), *_foreign_code(plans), *setups, *tests]
    unique = {(error.where, error.message): error for error in (*invalid_toolboxes, *invalid_members, *problems)}
    return TrustReport(folder=folder, code=_unique(code), plans=plans, problems=[*unique.values()])


async def inspect_workflow(hall: Hall, file: Path, frame: Frame) -> TrustReport:
    """Return the setup of a workflow, with the code of its agents."""
    workflow = load_workflow(hall, file, frame)
    workflow_frame = workflow.frame(frame)
    setup = setup_status(workflow, Trust(hall.workers.pins()), hall.home)
    settings = hall.settings(workflow_frame)
    values, _ = planned_start(workflow, tag=MAIN, params={}, frame=frame, home=hall.home, settings=settings)
    request = RunRequest(worker=str(file), input="")
    plans = [*(await plans_of_agents(hall, workflow, values, request, frame)).values()]
    find_code = hall.workers.preflight.find_code
    problems = [error for agent in workflow.agents for error in find_code(agent.worker, workflow_frame)[1]]
    code = [*([setup] if setup and not setup.own else []), *_foreign_code(plans)]
    return TrustReport(folder=workflow_frame.root, code=_unique(code), plans=plans, problems=problems)


async def inspect_test(hall: Hall, file: Path, frame: Frame) -> TrustReport:
    """Return the file of a test and the code of its workers. Return no code if the test cannot run programs."""
    from guildhall.models.scripted.source import Script

    source = yaml.read(file)
    case = yaml.validate(Script, source).test
    test_code = code_of_test(source, hall.home)
    if case is not None and not test_code.is_own:
        plans, may_run_programs = await _plan_test(case, test_code.root, hall, frame)
        if may_run_programs:
            code = [*_foreign_code(plans), *_with_trust(hall, [test_code])]
            return TrustReport(folder=test_code.root, code=code, plans=plans, problems=[])
    return TrustReport(folder=test_code.root, code=[], plans=[], problems=[])


def _members(hall: Hall, frame: Frame) -> tuple[list[Code], list[GuildError]]:
    """Return the code of the project's members, and the errors of members that cannot be read."""
    codes: list[Code] = []
    problems: list[GuildError] = []
    for member in hall.members.registry(frame).members():
        if member.scope != "project":
            continue
        if member.error is not None:
            problems.append(InvalidFile(f"invalid member {member.name}: {member.error}"))
            continue
        try:
            codes.append(member_code(member))
        except GuildError as error:
            problems.append(error)
    return codes, problems


def _with_trust(hall: Hall, codes: Iterable[Code]) -> list[ExecutedCode]:
    trust = Trust(hall.workers.pins())
    return [
        ExecutedCode(kind=code.kind, name=code.name, own=False, trusted=trust.is_trusted(code), files=trust.files(code))
        for code in codes
    ]


def _workers(hall: Hall, frame: Frame) -> Iterable[Worker]:
    registry = hall.workers.registry(frame)
    for listed in registry.listings():
        if listed.scope == "project" and listed.error is None:
            try:
                yield registry.find(str(listed.path), frame.cwd)
            except GuildError:  # a worker with an invalid template executes nothing
                continue


def _foreign_code(plans: Iterable[Plan]) -> list[ExecutedCode]:
    """Return the code of plans that needs trust, trusted or not."""
    with_callees = (each for plan in plans for each in (plan, *(call.plan for call in plan.calls if call.plan)))
    return [code for plan in with_callees for code in plan.code if not code.own]


def _unique(code: Iterable[ExecutedCode]) -> list[ExecutedCode]:
    return list({(item.kind, item.name, item.files): item for item in code}.values())
