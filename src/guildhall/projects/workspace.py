"""What commissions and meetings share: the context, the checkout with its branch, and the check of a worker's model.

Does not call git (`git`) or a model, and does not decide when to merge (`commissions/completion.py`,
`meetings/service.py`).

Invariant: each step detects that it was done before, so all steps can be repeated after a crash.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from guildhall.activities.contract import READING, WRITING
from guildhall.core.clock import Clock, stamp
from guildhall.core.errors import NotFound
from guildhall.models.catalog import AUTO, CURSOR, REPLAY, SCRIPT
from guildhall.models.credentials import WITH_LOGIN
from guildhall.models.providers import split_name
from guildhall.models.scripted.source import load_script
from guildhall.projects.records import moments, transitions
from guildhall.runs.assembly.preflight import adapt_model
from guildhall.runs.execution.grants import unpriced
from guildhall.workers.registry import MODEL_OPTION, ModelChoice, choose_model

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from guildhall.core.config import Settings
    from guildhall.core.frame import Frame
    from guildhall.models.model import Source
    from guildhall.projects.git.integration import Branches
    from guildhall.projects.git.snapshot import Aside
    from guildhall.projects.git.worktrees import Worktrees
    from guildhall.projects.model import Moment, Project, Scope
    from guildhall.projects.registry import Projects
    from guildhall.runs.execution.runs import Runs
    from guildhall.runs.record.history import History
    from guildhall.store.engine import Store
    from guildhall.workers.model import Worker


@dataclass(frozen=True, kw_only=True)
class Work:
    """The tip of the branch, if it exists, and the paths that cannot be committed, each with the reason."""

    tip: str | None = None
    left: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, kw_only=True)
class Workplace:
    """The checkout and branch of a meeting, or of one attempt at a commission."""

    project: Project
    branches: Branches
    worktrees: Worktrees
    activity: str  # the name of the checkout
    branch: str
    worker: str  # whose work it is

    @property
    def path(self) -> Path:
        """Return the path of the checkout, whether or not it exists."""
        return self.worktrees.path(self.project, self.activity)

    def tip(self) -> str | None:
        """Return the tip of the branch, or None before the first and after the last session or attempt."""
        return self.branches.git.resolve(self.branch)

    def check_out(self, scope: Scope) -> Path:
        """Return the checkout. Create it if it does not exist."""
        return self.worktrees.make(self.project, self.activity, self.branch, scope)

    def keep(self, message: str, wanted: Sequence[str] = ()) -> Work:
        """Commit the checkout on its branch, with `wanted` paths even if git ignores them."""
        left: Sequence[tuple[str, str]] = ()
        with suppress(NotFound):  # there is no checkout: what is on the branch is all there is
            left = self.worktrees.keep(self.project, self.activity, message, self.worker, wanted).left
        return Work(tip=self.tip(), left=left)

    def ignored(self) -> list[str]:
        """Return the ignored paths in the checkout. A folder without tracked files ends in a slash."""
        return self.worktrees.ignored(self.project, self.activity)

    def land(self, message: str, also: Mapping[str, bytes | None]) -> None:
        """Squash the work and further files into the integration branch, as one commit."""
        self.branches.keep_up()  # so that what does not fit the user's branch of today is not taken in
        self.branches.squash(self.branch, message, self.worker, also)

    def put_away(self, *, landed: bool) -> Aside | None:
        """Remove the checkout after committing its content. Archive a branch that has `landed`."""
        aside = self.worktrees.remove(self.project, self.activity)
        if landed and self.tip() is not None:
            self.branches.keep(self.branch)
        return aside


FILES = (*READING, *WRITING)  # that it has without declaring them


def in_checkout(worker: Worker, how_to: str) -> Worker:
    """Return the worker with file tools and further instructions. Its own schema does not apply."""
    definition = worker.definition
    declared = [name for name in definition.tools if name not in FILES]
    changed = {"tools": (*FILES, *declared), "output_schema_ref": None}
    told = f"{worker.instructions.rstrip()}\n\n{how_to}\n"
    return replace(worker, definition=definition.model_copy(update=changed), instructions=told)


@dataclass(frozen=True, kw_only=True)
class UsableModels:
    """The models that workers can use."""

    settings: Callable[[Frame], Settings]
    source: Callable[[str, Frame, bool], Source]
    priced: Callable[[str, Frame], bool | None]  # None: that cannot be known

    def later(self, worker: Worker, frame: Frame, *, override: str | None = None, in_dollars: bool = False) -> None:
        """Raise if the worker has no model or an unknown one. The model need not be callable yet.

        `in_dollars`: a limit in dollars must be kept.
        """
        choice = self.chosen(worker, frame, override)
        if choice.by in ("override", "frame"):
            _refuse_unknown(choice.model)
        if in_dollars and self.priced(choice.model, frame) is False:
            raise unpriced(choice.model)

    def now(self, worker: Worker, frame: Frame) -> None:
        """Raise if the worker has no model that can be called now."""
        choice = self.chosen(worker, frame)
        self.source(choice.model, frame, worker.definition.runtime == WITH_LOGIN)

    def chosen(
        self, worker: Worker, frame: Frame, override: str | None = None, *, model_option: str = MODEL_OPTION
    ) -> ModelChoice:
        """Return the worker's model, or raise if it has none. `model_option`: how a person could have named one."""
        choice = choose_model(worker, frame, self.settings(frame), override=override, model_option=model_option)
        return adapt_model(worker, choice)


def _refuse_unknown(model: str) -> None:
    if model.startswith(SCRIPT):
        load_script(Path(model.removeprefix(SCRIPT)))
    elif model != AUTO and not model.startswith((CURSOR, REPLAY)):
        split_name(model)


class Activity(Protocol):
    """A commission or a meeting."""

    @property
    def project(self) -> str: ...
    @property
    def worker(self) -> str: ...
    @property
    def branch(self) -> str | None: ...
    @property
    def checkout(self) -> str: ...


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
    frame_at: Callable[[Path], Frame]  # the frame of what the hall does on its own in a folder

    def now(self) -> str:
        return stamp(self.clock.now())

    def timeline(self, id: str) -> list[Moment]:
        return self.store.read(lambda connection: moments(connection, id))

    def revision(self, id: str) -> int:
        """Return the number of transitions in a timeline."""
        return self.store.read(lambda connection: transitions(connection, id))

    def project(self, activity: Activity) -> Project:
        return self.projects().get(activity.project)

    def git(self, activity: Activity) -> Branches:
        return self.branches(self.project(activity))

    def workplace(self, activity: Activity) -> Workplace:
        """Return the checkout and branch of a meeting, or of the current attempt at a commission."""
        project = self.project(activity)
        return Workplace(
            project=project,
            branches=self.branches(project),
            worktrees=self.worktrees,
            activity=activity.checkout,
            branch=activity.branch or "",
            worker=activity.worker,
        )
