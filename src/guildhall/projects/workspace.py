"""Shared parts of commissions and meetings: the context, artifacts, the checkout with its branch, and model checks.

An artifact with fewer transitions than its row is outdated. Any other difference of the status is an edit by hand.
Does not decide when to merge (`commissions/completion.py`, `meetings/service.py`).

Invariant: each operation is idempotent, so that it can be repeated after a crash.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from guildhall.activities.contract import READ_TOOLS, WRITE_TOOLS
from guildhall.core.clock import Clock, stamp
from guildhall.core.errors import GuildError, NotFound
from guildhall.models.credentials import LOGIN_RUNTIME
from guildhall.projects.activity_records import count_transitions, list_known_ids, list_timeline
from guildhall.projects.model import RECORDS, Activity, Artifact
from guildhall.runs.assembly.preflight import adapt_model, no_price_error, raise_problems
from guildhall.workers.registry import MODEL_OPTION, ModelChoice, choose_model

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.config import Settings
    from guildhall.core.request_frame import Frame
    from guildhall.models.model import Source
    from guildhall.projects.git.integration_branch import Branches
    from guildhall.projects.git.snapshot import UncommittedFiles
    from guildhall.projects.git.worktrees import Worktrees
    from guildhall.projects.model import Project, Scope, TimelineEntry
    from guildhall.projects.registry import Projects
    from guildhall.runs.execution.runs import Runs
    from guildhall.runs.record.queries import History
    from guildhall.store.engine import Store
    from guildhall.workers.model import Worker

_log = logging.getLogger("guildhall.projects")
ActivityT = TypeVar("ActivityT", bound=Activity)
REBUILT = "rebuilt from its artifact: the row was missing"


@dataclass(frozen=True, kw_only=True)
class Work:
    """The committed work of an activity."""

    tip: str | None = None  # commit of the branch, or None if the branch does not exist
    rejected: Sequence[tuple[str, str]] = ()  # paths that git cannot store, with the reasons


@dataclass(frozen=True, kw_only=True)
class Workspace:
    """The checkout and branch of a meeting, or of one attempt at a commission."""

    project: Project
    branches: Branches
    worktrees: Worktrees
    activity: str  # name of the checkout
    branch: str
    worker: str  # author of the commits

    @property
    def path(self) -> Path:
        """Return the path of the checkout, which may not exist."""
        return self.worktrees.path(self.project, self.activity)

    def tip(self) -> str | None:
        """Return the tip of the branch, or None if the branch does not exist."""
        return self.branches.git.resolve(self.branch)

    def check_out(self, scope: Scope) -> Path:
        """Return the path of the checkout, created if necessary."""
        return self.worktrees.check_out(self.project, self.activity, self.branch, scope)

    def commit(self, message: str, wanted: Sequence[str] = ()) -> Work:
        """Commit the checkout on its branch. `wanted`: paths that are committed even if git ignores them."""
        rejected: Sequence[tuple[str, str]] = ()
        with suppress(NotFound):  # without a checkout, the branch contains all of the work
            rejected = self.worktrees.commit(self.project, self.activity, message, self.worker, wanted).rejected
        return Work(tip=self.tip(), rejected=rejected)

    def list_ignored(self) -> list[str]:
        """Return the ignored paths in the checkout. A folder without tracked files ends in a slash."""
        return self.worktrees.list_ignored(self.project, self.activity)

    def merge(self, message: str, files: Mapping[str, bytes | None]) -> None:
        """Squash the work into the integration branch as one commit, then write records of the hall."""
        self.branches.try_update()  # so that conflicts with the user's current branch are found
        self.branches.squash(self.branch, message, self.worker)
        self.branches.write_records(files, message, self.worker)

    def remove(self, *, is_merged: bool) -> UncommittedFiles | None:
        """Remove the checkout after committing its content. Archive the branch if it is merged."""
        uncommitted = self.worktrees.remove(self.project, self.activity)
        if is_merged and self.tip() is not None:
            self.branches.archive(self.branch)
        return uncommitted


FILE_TOOLS = (*READ_TOOLS, *WRITE_TOOLS)


def checkout_profile(worker: Worker, instructions: str) -> Worker:
    """Return the worker with file tools and further instructions, without an output schema."""
    declared = [name for name in worker.definition.tools if name not in FILE_TOOLS]
    return adapt_worker(worker, instructions, tools=(*FILE_TOOLS, *declared))


def adapt_worker(worker: Worker, instructions: str, **changes: Any) -> Worker:
    """Return the worker with further instructions and changed fields, without an output schema."""
    definition = worker.definition.model_copy(update={**changes, "output_schema_ref": None})
    return replace(worker, definition=definition, instructions=f"{worker.instructions.rstrip()}\n\n{instructions}\n")


@dataclass(frozen=True, kw_only=True)
class WorkerChecks:
    """Checks that a worker can run, before a commission or meeting is created."""

    load_settings: Callable[[Frame], Settings]
    find_source: Callable[[str, Frame, bool], Source]  # raises if the model cannot be called
    is_priced: Callable[[str, Frame], bool | None]  # returns None if unknown
    find_problems: Callable[[Worker, Frame], Sequence[GuildError]]  # with the program, code, servers and sandboxes

    def check_usable(
        self, worker: Worker, frame: Frame, *, override: str | None = None, has_budget: bool = False
    ) -> None:
        """Raise if the worker has no model that can be called, or declares resources that are missing.

        `has_budget`: the model needs a price.
        """
        choice = self.choose_model(worker, frame, override)
        raise_problems(self.find_problems(worker, frame), worker.place)
        self.find_source(choice.model, frame, worker.definition.runtime == LOGIN_RUNTIME)
        if has_budget and self.is_priced(choice.model, frame) is False:
            raise no_price_error(choice.model)

    def choose_model(
        self, worker: Worker, frame: Frame, override: str | None = None, *, model_option: str = MODEL_OPTION
    ) -> ModelChoice:
        """Return the worker's model, or raise if it has none. `model_option`: the option that the error recommends."""
        choice = choose_model(worker, frame, self.load_settings(frame), override=override, model_option=model_option)
        return adapt_model(worker, choice)


@dataclass(frozen=True, kw_only=True)
class ProjectContext:
    """The collaborators of the operations on commissions and meetings."""

    store: Store
    clock: Clock
    history: History
    redact: Callable[[str], str]  # removes secrets from a text for the repository
    projects: Callable[[], Projects]
    branches: Callable[[Project], Branches]
    worktrees: Worktrees
    runs: Callable[[], Runs]
    is_alive: Callable[[str], bool]  # True if this hall executes the run
    find_worker: Callable[[str, Frame], Worker]
    checks: WorkerChecks
    frame_at: Callable[[Path], Frame]  # the frame of the hall's own operations in a folder

    def now(self) -> str:
        return stamp(self.clock.now())

    def timeline(self, id: str) -> list[TimelineEntry]:
        return self.store.read(lambda connection: list_timeline(connection, id))

    def revision(self, id: str) -> int:
        return self.store.read(lambda connection: count_transitions(connection, id))

    def project(self, activity: Activity) -> Project:
        return self.projects().get(activity.project)

    def branches_of(self, activity: Activity) -> Branches:
        return self.branches(self.project(activity))

    def list_projects(self) -> list[Project]:
        """Return the valid projects. If config.yaml is unreadable, log the error and return an empty list."""
        try:
            return self.projects().list_valid()
        except GuildError as error:
            _log.warning("%s", error)
            return []

    def read_artifact(self, activity: Activity) -> Artifact | None:
        """Return the artifact of an activity, or None if it does not exist."""
        data = self.branches_of(activity).read(activity.path)
        return None if data is None else Artifact.decode(data, activity.path)

    def has_current_artifact(self, activity: Activity) -> bool:
        """Return False if the artifact of an activity is missing or outdated."""
        artifact = self.read_artifact(activity)
        is_same = artifact is not None and artifact.status == activity.status
        return is_same or (artifact is not None and artifact.revision >= self.revision(activity.id))

    def artifact_warnings(self, activity: Activity) -> list[str]:
        """Return a warning if the artifact of an activity is missing, unreadable or edited by hand."""
        try:
            artifact = self.read_artifact(activity)
        except GuildError as error:
            return [f"{activity.path}: {error.message}"]
        if artifact is None:
            return [f"{activity.path} is missing on {RECORDS}"]
        if artifact.status == activity.status or artifact.revision < self.revision(activity.id):
            return []
        return [f"{activity.path} was edited by hand to {artifact.status[:40]!r}, but the status is {activity.status}"]

    def rebuild_rows(
        self, project: Project, folder: str, parse: Callable[[str, bytes], ActivityT], add: Callable[..., None]
    ) -> None:
        """Add the missing rows of the artifacts below a folder, for example after the database was lost.

        `parse`: returns the activity with an id and an artifact. `add`: adds its row.
        """
        branches = self.branches(project)
        known = self.store.read(list_known_ids)
        for path in branches.list_files(folder):
            id = path.removeprefix(f"{folder}/").removesuffix(".md")
            if id in known or path != f"{folder}/{id}.md":
                continue
            try:
                activity = parse(id, branches.read(path) or b"")
            except GuildError as error:
                _log.warning("%s of %s: %s", path, project.name, error)
                continue
            self.store.submit(partial(add, activity=activity, kind="rebuild", reason=REBUILT)).result()

    def workspace(self, activity: Activity) -> Workspace:
        """Return the checkout and branch of a meeting, or of the current attempt at a commission."""
        project = self.project(activity)
        return Workspace(
            project=project,
            branches=self.branches(project),
            worktrees=self.worktrees,
            activity=activity.checkout,
            branch=activity.branch or "",
            worker=activity.worker,
        )
