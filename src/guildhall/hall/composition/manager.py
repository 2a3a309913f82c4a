"""The tools of the manager in a hall."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from guildhall.projects.manager.outward import Outward
from guildhall.projects.manager.pull_request import PullRequests
from guildhall.projects.manager.tools import CONTEXTS, ManagerContext, is_manager, manager_tools
from guildhall.runs.journal import entries_with
from guildhall.runs.record.entries import ToolStarted
from guildhall.workers.definition import ToolRule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from guildhall.core.frame import Frame
    from guildhall.hall.composition.projects import ProjectServices
    from guildhall.projects.manager.pull_request import Review
    from guildhall.projects.model import Project
    from guildhall.tools.model import Tool
    from guildhall.workers.model import Worker


def make_manager_tools(
    services: ProjectServices, worker: Worker, frame: Frame, run: str, context: str
) -> tuple[Tool, ...]:
    """Return the manager's tools if this is the manager and it works for a user, else nothing."""
    if not is_manager(worker) or context not in CONTEXTS:
        return ()
    return manager_tools(
        ManagerContext(
            run=run,
            frame=frame,
            projects=services.projects,
            commissions=lambda: services.commissions,
            meetings=lambda: services.meetings,
            workers=partial(_workers, services),
            review=partial(_open_pull_request, services),
            began=partial(_started_at, services, run),
        )
    )


def add_manager_rules(worker: Worker, asks_before: Sequence[str]) -> Worker:
    """Return the manager with the tools that need approval by the settings. Return any other worker unchanged."""
    if not asks_before or not is_manager(worker):
        return worker
    rules = {**worker.definition.tool_rules, **{name: ToolRule(approval_required=True) for name in asks_before}}
    return replace(worker, definition=worker.definition.model_copy(update={"tool_rules": rules}))


def _workers(services: ProjectServices, frame: Frame) -> Sequence[Worker]:
    """Return the workers that the manager can give work to: not itself, and no worker that only the hall runs."""
    found = services.workers.active(frame)
    return [one for one in found if one.scope != "shipped" or (one.definition.base and not is_manager(one))]


def _open_pull_request(services: ProjectServices, project: Project, title: str, body: str) -> Review:
    environment = services.environment
    outward = Outward(project.path, environment.environ)
    git, branches = services.git(project), services.branches(project)
    return PullRequests(project, git=git, branches=branches, outward=outward, clock=environment.clock).open(title, body)


def _started_at(services: ProjectServices, run: str, key: str) -> str | None:
    """Return when a tool call of a run started, the first time if it was repeated. Return None if it did not."""
    journal = services.database.history.journal(run)
    return next((entry.at for entry in entries_with(journal.of(key), ToolStarted)), None)
