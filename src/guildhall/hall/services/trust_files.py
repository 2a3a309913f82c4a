"""Files that need trust: collect the code and the test files of a folder or a worker, with their digests.

Does not store pins (`trust`). Imported when it is needed, because it loads workers and workflows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from guildhall.core import yaml
from guildhall.core.errors import GuildError, InvalidFile, NotFound, UsageError
from guildhall.core.paths import project_root
from guildhall.hall.client.model import Trusting
from guildhall.hall.composition.workflow_files import load_workflow, plans_of_agents
from guildhall.hall.testrun.files import TESTS, code_of_test, has_test, runs_programs, tests_in
from guildhall.members.folders import member_code
from guildhall.runs.model import RunRequest
from guildhall.runs.plan.model import ExecutedCode, Plan
from guildhall.workers.code import Code, Trust, project_toolboxes
from guildhall.workers.loader import WORKER_SUFFIXES
from guildhall.workers.model import WORKERS, Worker
from guildhall.workflow.loader import executed
from guildhall.workflow.plan import as_far_as_known
from guildhall.workflow.target import MAIN, is_workflow, workflows_in

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from guildhall.core.frame import Frame
    from guildhall.hall.composition.hall import Hall
    from guildhall.models.scripted.test_case import Case


async def plans_of_test(case: Case, root: Path, hall: Hall, frame: Frame) -> tuple[list[Plan], bool]:
    """Return the plans of a test's worker or agents, as far as they can be made, and True if it could run programs.

    A test with a worker file of its own counts as one that could.
    """
    from guildhall.core.redaction import Redactor
    from guildhall.runs.replay.normalize import Normalizer

    frame = replace(frame, cwd=root / case.folder, root=root)
    name = str(Normalizer(root, hall.home.path, Redactor(hall.environ)).restore(case.subject))
    brings = any(path == name or path.startswith(f"{WORKERS}/") for path in case.files)
    try:
        if case.workflow is None:
            plans = [await hall.workers.planner.plan(hall.workers.find(name, frame), frame)]
        else:
            workflow = load_workflow(hall, root / name, frame)
            there = workflow.frame(frame)
            plans = [await hall.workers.planner.plan(agent.worker, there) for agent in workflow.agents]
    except GuildError:
        return [], brings
    return plans, brings or any(map(runs_programs, plans))


async def of_worker(hall: Hall, worker: Worker, frame: Frame) -> Trusting:
    """Return the code of a worker and of all workers that it may call."""
    plan = await hall.workers.planner.plan(worker, frame)
    _, wrong = hall.workers.preflight.code_of(worker, frame)
    return Trusting(folder=worker.resource_folder(frame), code=_once(_executed([plan])), plans=[plan], problems=wrong)


async def of_folder(hall: Hall, at: Path | None, frame: Frame) -> Trusting:
    """Return the code of a folder: its toolboxes, the code that its workers name, setups, tests that run programs.

    `at` may be the file of a worker, of a workflow, or of a test.
    """
    if at is None:
        return await _of_project(hall, frame)
    at = frame.cwd / at
    if not at.exists():
        raise NotFound(f"there is no folder {at}")
    if at.name.endswith(WORKER_SUFFIXES) and at.is_file():
        if is_workflow(at):
            return await of_workflow(hall, at, frame)
        if has_test(at):
            return await of_test(hall, at, frame)
        return await of_worker(hall, hall.workers.find(str(at), frame), frame)
    if not at.is_dir():
        raise UsageError(f"{at} is neither a folder nor the file of a worker or a workflow")
    return await _of_project(hall, replace(frame, cwd=at.resolve(), root=project_root(at.resolve())))


async def _of_project(hall: Hall, frame: Frame) -> Trusting:
    folder = frame.root
    plans: list[Plan] = []
    wrong: list[GuildError] = []
    for worker in _workers(hall, frame):
        plan = await hall.workers.planner.plan(worker, frame)
        if _executed([plan]):
            plans.append(plan)
        wrong += hall.workers.preflight.code_of(worker, frame)[1]
    lying, unreadable = project_toolboxes(folder)
    if folder.resolve() == hall.home.path.resolve():  # what lies there the person has put there
        lying, unreadable = [], []
    members, unread = _members(hall, frame)
    lying, unreadable = [*lying, *members], [*unreadable, *unread]
    tests: list[ExecutedCode] = []
    for file in tests_in(folder / TESTS):
        try:
            looking = await of_test(hall, file, frame)
        except GuildError:  # it cannot be a test, and so runs nothing
            continue
        tests += [code for code in looking.code if code.kind == "test"]
        plans += [plan for plan in looking.plans if plan.worker not in [one.worker for one in plans]]
    setups: list[ExecutedCode] = []
    for file in workflows_in(folder):
        try:
            looking = await of_workflow(hall, file, frame)
            setups += [code for code in looking.code if code.kind == "workflow"]
        except GuildError as error:
            wrong.append(error)
    code = [*_stand(hall, lying), *_executed(plans), *setups, *tests]
    problems = {(error.where, error.message): error for error in (*unreadable, *wrong)}
    return Trusting(folder=folder, code=_once(code), plans=plans, problems=[*problems.values()])


async def of_workflow(hall: Hall, file: Path, frame: Frame) -> Trusting:
    """Return the setup of a workflow, with the code of its agents."""
    workflow = load_workflow(hall, file, frame)
    there = workflow.frame(frame)
    setup = executed(workflow, Trust(hall.workers.pins()), hall.home)
    settings = hall.settings(there)
    known = as_far_as_known(workflow, tag=MAIN, params={}, frame=frame, home=hall.home, settings=settings)
    request = RunRequest(worker=str(file), input="")
    plans = [*(await plans_of_agents(hall, workflow, known.values, request, frame)).values()]
    wrong = [error for agent in workflow.agents for error in hall.workers.preflight.code_of(agent.worker, there)[1]]
    code = [*([setup] if setup and not setup.own else []), *_executed(plans)]
    return Trusting(folder=there.root, code=_once(code), plans=plans, problems=wrong)


async def of_test(hall: Hall, file: Path, frame: Frame) -> Trusting:
    """Return the file of a test if its worker can run programs, with the code of the worker."""
    from guildhall.models.scripted.source import Script

    source = yaml.read(file)
    case = yaml.validate(Script, source).test
    found = code_of_test(source, hall.home)
    if case is not None and not found.is_own:
        plans, runs = await plans_of_test(case, found.root, hall, frame)
        if runs:
            code = [*_executed(plans), *_stand(hall, [found])]
            return Trusting(folder=found.root, code=code, plans=plans, problems=[])
    return Trusting(folder=found.root, code=[], plans=[], problems=[])


def _members(hall: Hall, frame: Frame) -> tuple[list[Code], list[GuildError]]:
    """Return the code of the project's members, and the members that cannot be read."""
    found: list[Code] = []
    wrong: list[GuildError] = []
    for member in hall.members.registry(frame).members():
        if member.scope != "project":
            continue
        if member.error is not None:
            wrong.append(InvalidFile(f"the member {member.name} cannot be used: {member.error}"))
            continue
        try:
            found.append(member_code(member))
        except GuildError as error:
            wrong.append(error)
    return found, wrong


def _stand(hall: Hall, found: Iterable[Code]) -> list[ExecutedCode]:
    trust = Trust(hall.workers.pins())
    return [
        ExecutedCode(kind=one.kind, name=one.name, own=False, trusted=trust.is_trusted(one), files=trust.files(one))
        for one in found
    ]


def _workers(hall: Hall, frame: Frame) -> Iterable[Worker]:
    registry = hall.workers.registry(frame)
    for listed in registry.listings():
        if listed.scope == "project" and listed.error is None:
            try:
                yield registry.find(str(listed.path), frame.cwd)
            except GuildError:  # its template is wrong: it executes nothing
                continue


def _executed(plans: Iterable[Plan]) -> list[ExecutedCode]:
    everyone = [one for plan in plans for one in (plan, *(called.plan for called in plan.calls if called.plan))]
    return [code for plan in everyone for code in plan.code if not code.own]


def _once(code: Iterable[ExecutedCode]) -> list[ExecutedCode]:
    return list({(one.kind, one.name, one.files): one for one in code}.values())
