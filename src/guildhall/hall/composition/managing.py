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
    from guildhall.hall.composition.projects import Guild
    from guildhall.projects.manager.pull_request import Review
    from guildhall.projects.model import Project
    from guildhall.tools.model import Tool
    from guildhall.workers.model import Worker


def managing(hall: Guild, worker: Worker, frame: Frame, run: str, context: str) -> tuple[Tool, ...]:
    """The manager's tools, if this is the manager and it works for a person; nothing for everybody else."""
    if not is_manager(worker) or context not in CONTEXTS:
        return ()
    return manager_tools(
        ManagerContext(
            run=run,
            frame=frame,
            projects=hall.projects,
            commissions=lambda: hall.commissions,
            meetings=lambda: hall.meetings,
            workers=partial(_workers, hall),
            review=partial(_review, hall),
            began=lambda key: _began(hall, run, key),
        )
    )


def ruled(worker: Worker, asks_before: Sequence[str]) -> Worker:
    """The manager as the settings want it; every other worker as it is."""
    if not asks_before or not is_manager(worker):
        return worker
    rules = {**worker.definition.tool_rules, **{name: ToolRule(approval_required=True) for name in asks_before}}
    return replace(worker, definition=worker.definition.model_copy(update={"tool_rules": rules}))


def _workers(hall: Guild, frame: Frame) -> Sequence[Worker]:
    """Without the manager itself, and without those that only the hall runs, which have no tools at all."""
    found = hall.active_workers(frame)
    return [one for one in found if one.scope != "shipped" or (one.definition.base and not is_manager(one))]


def _review(hall: Guild, project: Project, title: str, body: str) -> Review:
    outward = Outward(project.path, hall.environ)
    git, branches = hall.git(project), hall.branches(project)
    return PullRequests(project, git=git, branches=branches, outward=outward, clock=hall.clock).open(title, body)


def _began(hall: Guild, run: str, key: str) -> str | None:
    """When a call of a run began; one that was made again began when it was made first."""
    return next((entry.at for entry in entries_with(hall.history.journal(run).of(key), ToolStarted)), None)
