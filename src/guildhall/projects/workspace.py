"""Shared parts of commissions and meetings: the context, the checkout with its branch, and checks of models.

Does not call git (`git`) or a model, and does not decide when to merge (`commissions/completion.py`,
`meetings/service.py`).

Invariant: each step detects that it was done before, so all steps can be repeated after a crash.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guildhall.activities.contract import READ_TOOLS, WRITE_TOOLS
from guildhall.core.clock import Clock, stamp
from guildhall.core.errors import GuildError, NotFound
from guildhall.models.catalog import AUTO, CURSOR, REPLAY, SCRIPT
from guildhall.models.credentials import LOGIN_RUNTIME
from guildhall.models.provider_source import split_name
from guildhall.models.scripted.source import load_script
from guildhall.projects.model import INTEGRATION
from guildhall.projects.shared_records import count_transitions, list_known_ids, list_timeline
from guildhall.runs.assembly.preflight import adapt_model
from guildhall.runs.execution.grants import no_price_error
from guildhall.workers.registry import MODEL_OPTION, ModelChoice, choose_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from guildhall.core.config import Settings
    from guildhall.core.request_frame import Frame
    from guildhall.models.model import Source
    from guildhall.projects.git.integration import Branches
    from guildhall.projects.git.snapshot import UncommittedFiles
    from guildhall.projects.git.worktrees import Worktrees
    from guildhall.projects.model import Activity, Project, Scope, TimelineEntry
    from guildhall.projects.registry import Projects
    from guildhall.runs.execution.runs import Runs
    from guildhall.runs.record.queries import History
    from guildhall.store.engine import Store
    from guildhall.workers.model import Worker

_log = logging.getLogger("guildhall.projects")


@dataclass(frozen=True, kw_only=True)
class Work:
    """The tip of a branch, or None if the branch does not exist, and the paths that git cannot store, with reasons."""

    tip: str | None = None
    rejected: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, kw_only=True)
class Workspace:
    """The checkout and branch of a meeting, or of one attempt at a commission."""

    project: Project
    branches: Branches
    worktrees: Worktrees
    activity: str  # the name of the checkout
    branch: str
    worker: str  # the author of its commits

    @property
    def path(self) -> Path:
        """Return the path of the checkout, whether or not it exists."""
        return self.worktrees.path(self.project, self.activity)

    def tip(self) -> str | None:
        """Return the tip of the branch, or None before the first and after the last session or attempt."""
        return self.branches.git.resolve(self.branch)

    def check_out(self, scope: Scope) -> Path:
        """Return the path of the checkout, created if necessary."""
        return self.worktrees.check_out(self.project, self.activity, self.branch, scope)

    def commit(self, message: str, wanted: Sequence[str] = ()) -> Work:
        """Commit the checkout on its branch, with `wanted` paths even if git ignores them."""
        rejected: Sequence[tuple[str, str]] = ()
        with suppress(NotFound):  # without a checkout, the branch has all of the work
            rejected = self.worktrees.commit(self.project, self.activity, message, self.worker, wanted).rejected
        return Work(tip=self.tip(), rejected=rejected)

    def list_ignored(self) -> list[str]:
        """Return the ignored paths in the checkout. A folder without tracked files ends in a slash."""
        return self.worktrees.list_ignored(self.project, self.activity)

    def merge(self, message: str, files: Mapping[str, bytes | None]) -> None:
        """Squash the work and further files into the integration branch, as one commit."""
        self.branches.try_update()  # the work has to fit the user's current branch
        self.branches.squash(self.branch, message, self.worker, files)

    def remove(self, *, is_merged: bool) -> UncommittedFiles | None:
        """Remove the checkout after committing its content. Archive the branch if it is merged."""
        uncommitted = self.worktrees.remove(self.project, self.activity)
        if is_merged and self.tip() is not None:
            self.branches.archive(self.branch)
        return uncommitted


FILE_TOOLS = (*READ_TOOLS, *WRITE_TOOLS)


def checkout_profile(worker: Worker, instructions: str) -> Worker:
    """Return the worker with file tools and further instructions. Its own schema does not apply."""
    declared = [name for name in worker.definition.tools if name not in FILE_TOOLS]
    return adapt_worker(worker, instructions, tools=(*FILE_TOOLS, *declared))


def adapt_worker(worker: Worker, instructions: str, **changes: Any) -> Worker:
    """Return the worker with further instructions and changed fields. Its own schema does not apply."""
    definition = worker.definition.model_copy(update={**changes, "output_schema_ref": None})
    return replace(worker, definition=definition, instructions=f"{worker.instructions.rstrip()}\n\n{instructions}\n")


@dataclass(frozen=True, kw_only=True)
class UsableModels:
    """Checks the models of workers before runs are created."""

    settings: Callable[[Frame], Settings]
    source: Callable[[str, Frame, bool], Source]
    is_priced: Callable[[str, Frame], bool | None]  # None: unknown

    def check_known(
        self, worker: Worker, frame: Frame, *, override: str | None = None, in_dollars: bool = False
    ) -> None:
        """Raise if the worker has no model or an unknown one. The model need not be callable yet.

        `in_dollars`: the run has a limit in dollars, so the model needs a price.
        """
        choice = self.choose(worker, frame, override)
        if choice.by in ("override", "frame"):
            _check_model_name(choice.model)
        if in_dollars and self.is_priced(choice.model, frame) is False:
            raise no_price_error(choice.model)

    def check_callable(self, worker: Worker, frame: Frame) -> None:
        """Raise if the worker has no model that can be called now."""
        choice = self.choose(worker, frame)
        self.source(choice.model, frame, worker.definition.runtime == LOGIN_RUNTIME)

    def choose(
        self, worker: Worker, frame: Frame, override: str | None = None, *, model_option: str = MODEL_OPTION
    ) -> ModelChoice:
        """Return the worker's model, or raise if it has none. `model_option`: the option that the error recommends."""
        choice = choose_model(worker, frame, self.settings(frame), override=override, model_option=model_option)
        return adapt_model(worker, choice)


def _check_model_name(model: str) -> None:
    if model.startswith(SCRIPT):
        load_script(Path(model.removeprefix(SCRIPT)))
    elif model != AUTO and not model.startswith((CURSOR, REPLAY)):
        split_name(model)


@dataclass(frozen=True, kw_only=True)
class ProjectContext:
    """The collaborators of the operations on commissions and meetings. It decides nothing."""

    store: Store
    clock: Clock
    history: History
    redact: Callable[[str], str]  # removes secrets from a text that goes into the repository
    projects: Callable[[], Projects]
    branches: Callable[[Project], Branches]
    worktrees: Worktrees
    runs: Callable[[], Runs]
    is_alive: Callable[[str], bool]  # True if this hall executes the run
    find_worker: Callable[[str, Frame], Worker]
    models: UsableModels
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
        """Return the valid projects. If config.yaml is unreadable, log the error and return none."""
        try:
            return self.projects().list_valid()
        except GuildError as error:
            _log.warning("%s", error)
            return []

    def unrecorded_artifacts(self, project: Project, folder: str) -> Iterator[tuple[str, bytes]]:
        """Yield the id and the content of every artifact below a folder that has no record."""
        branches = self.branches(project)
        known = self.store.read(list_known_ids)
        for path in branches.list_files(folder) if branches.exists(INTEGRATION) else ():
            id = path.removeprefix(f"{folder}/").removesuffix(".md")
            if id not in known and path == f"{folder}/{id}.md":
                yield id, branches.read(path) or b""

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
