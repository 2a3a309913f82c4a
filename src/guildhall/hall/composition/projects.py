"""Project services of a hall: connect registration, git, commissions, meetings and the manager's tools.

The module creates the commission and meeting services of all projects. It also decides which project tools a worker
gets without declaring them.
Does not contain the rules of commissions, meetings or branches: `guildhall.projects` does.

Invariant: a hall that may write ties a project's name to its repository before it uses that repository.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from guildhall.core.errors import Conflict, GuildError
from guildhall.core.ids import is_name
from guildhall.hall.composition.environment import Environment
from guildhall.hall.composition.lazy import lazy
from guildhall.hall.composition.run_services import RunServices
from guildhall.projects.manager.pull_request import Outward, PullRequests, Review
from guildhall.projects.manager.tools import CONTEXTS, ManagerContext, is_manager, manager_tools
from guildhall.projects.model import Problem, Project, ProjectShown
from guildhall.runs.record.entries import ToolStarted
from guildhall.runs.record.journal import entries_with
from guildhall.workers.definition import ToolRule

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence
    from pathlib import Path

    from guildhall.core.events import EventBus
    from guildhall.core.frame import Frame
    from guildhall.hall.composition.database import Database
    from guildhall.hall.composition.workers import WorkerServices
    from guildhall.projects.commissions.model import Commission
    from guildhall.projects.commissions.service import Commissions
    from guildhall.projects.git.integration import Branches
    from guildhall.projects.git.repository import Git
    from guildhall.projects.git.worktrees import Worktrees
    from guildhall.projects.identity import Identities
    from guildhall.projects.meetings.service import Meetings
    from guildhall.projects.records import Redactions
    from guildhall.projects.registry import Projects
    from guildhall.projects.workspace import UsableModels
    from guildhall.tools.model import Tool
    from guildhall.workers.model import Worker


_log = logging.getLogger("guildhall.hall")


class ProjectServices:
    """The projects of a home, with their commissions and meetings."""

    def __init__(
        self, environment: Environment, database: Database, *, bus: EventBus, workers: WorkerServices, main: RunServices
    ) -> None:
        """`main`: the services of the home's own database, where the runs of projects are."""
        self.environment = environment
        self.database = database
        self.workers = workers
        self._bus = bus
        self._main = main
        self._gits: dict[tuple[str, Path], Git] = {}

    @property
    def projects(self) -> Projects:
        """The projects that config.yaml registers."""
        return self.environment.projects

    def git(self, project: Project) -> Git:
        """Git for a project's repository."""
        from guildhall.projects.git.repository import Git

        key = (project.name, project.path)
        if key not in self._gits:
            self._forget_git(project.name)  # the name may come back to where it was: then it is claimed again
            self._claim(project)
            self._gits[key] = Git(project.path, self.environment.home.desks / project.name)
        return self._gits[key]

    @lazy
    def identities(self) -> Identities:
        from guildhall.projects.identity import Identities

        return Identities(self.environment.home, self.database.store)

    def add_project(self, path: Path, name: str | None, branch: str | None) -> Project:
        """Registers a repository, with what is on record of it and of no other that had its name.

        One that is registered and was moved keeps its name and its settings.
        """
        moved = self._moved_to(path)
        if moved is not None and name not in (None, moved.name):
            hint = "Leave `--name` out: then it is registered here, with all that is on record of it."
            raise Conflict(f"this is the project {moved.name!r}, which was at {moved.path}", where=str(path), hint=hint)
        project = self.projects.move(moved, path, branch) if moved else self.projects.add(path, name, branch)
        self._forget_git(project.name)
        self._claim(project)
        return project

    def _moved_to(self, path: Path) -> Project | None:
        """The project whose own folder is gone, and whose repository lies here."""
        gone = [one for one in self.projects.sound() if not one.path.exists()] if path.is_dir() else []
        return next((one for one in gone if self.identities.is_at(one.name, path)), None)

    def remove_project(self, name: str) -> ProjectShown:
        """Takes a project out of the register; what is on record of it stays the repository's, not the name's."""
        removed = self.projects.remove(name)
        self._forget_git(name)
        if is_name(name):  # what config.yaml has may be anything
            self.identities.release(name, removed.project)
        return removed

    def check_project(self, name: str) -> list[Problem]:
        """What is wrong with a project: with its entry and its repository, then with how its branches stand."""
        found = self.projects.check(name)
        if any(problem.blocks for problem in found):
            return found
        try:
            self.branches(self.projects.get(name)).demand_followable()
        except GuildError as error:
            found.insert(0, Problem(message=error.message, hint=error.hint))
        return found

    def _forget_git(self, name: str) -> None:
        for key in [key for key in self._gits if key[0] == name]:
            del self._gits[key]

    def _claim(self, project: Project) -> None:
        """Nothing is done for a project before it is sure which repository its name stands for."""
        if self.environment.readonly or not project.path.is_dir():  # where its folder is gone, git says so
            return
        try:
            self.identities.claim(project)
        except OSError as error:
            hint = "The hall has to write there."
            raise Conflict(f"{project.name}: {error.strerror}", where=error.filename, hint=hint) from None

    def branches(self, project: Project) -> Branches:
        """The hall's branches of a project."""
        from guildhall.projects.git.integration import Branches

        return Branches(project, self.git(project), self.redact)

    @lazy
    def redact(self) -> Redactions:
        """Texts as they may come into a repository, also where an earlier hall knew a secret that this one does not."""
        from guildhall.projects.records import Redactions

        return Redactions(self.database.store, self.environment.secrets, readonly=self.environment.readonly)

    def _find_worker(self, name: str, frame: Frame) -> Worker:
        """Return a worker that may be given work. The caller's secrets are redacted from now on."""
        self.environment.secrets.learn({**frame.env, **frame.keys})
        return self.workers.find_for_work(name, frame)

    @lazy
    def usable_models(self) -> UsableModels:
        """What is known about models without asking one."""
        from guildhall.projects.workspace import UsableModels

        return UsableModels(
            settings=self.environment.settings, source=self.workers.source, priced=self.workers.has_price
        )

    @lazy
    def worktrees(self) -> Worktrees:
        from guildhall.projects.git.worktrees import Worktrees

        return Worktrees(self.environment.home, self.git)

    @lazy
    def meetings(self) -> Meetings:
        """The conversations of people with workers, in projects."""
        from guildhall.hall.composition.workers import check_trust_again
        from guildhall.projects.meetings.context import MeetingContext
        from guildhall.projects.meetings.service import Meetings

        return Meetings(
            MeetingContext(
                home=self.environment.home,
                store=self.database.store,
                clock=self.environment.clock,
                history=self.database.history,
                projects=Environment.projects.of(self.environment),
                branches=self.branches,
                worktrees=self.worktrees,
                runs=RunServices.runs.of(self._main),
                is_alive=self._main.is_alive,
                bus=self._bus,
                redact=self.redact,
                find_worker=self._find_worker,
                models=self.usable_models,
                check_trust=partial(check_trust_again, self.workers, self.database.history),
                frame_at=lambda place: self.environment.frame_at(place, place),
            )
        )

    def restore_worktrees(self) -> None:
        """Makes the checkouts again that were removed by hand while no hall was there. The log says which."""
        try:
            projects = self.projects.sound()
        except GuildError as error:  # config.yaml cannot be read at all: what is wrong there keeps nobody from going on
            _log.warning("the worktrees: %s", error)
            return
        for project in projects:
            try:
                self._claim(project)
                for lost in self.worktrees.missing(project):
                    self.commissions.record_lost_checkout(lost.activity)
                    self.worktrees.restore(project, lost.activity, lost.branch, lost.scope)
            except GuildError as error:
                _log.warning("the worktrees of %s: %s", project.name, error)

    def unfinished(self, project: str) -> tuple[str, ...]:
        """The commissions and meetings of a project that have not ended, and whatever else has a worktree there."""
        from guildhall.projects.commissions.model import parse_checkout_name
        from guildhall.projects.records import living

        on_record = self.database.store.read(lambda connection: living(connection, project))
        others = [parse_checkout_name(place) or place for place in self.worktrees.activities(project)]
        return tuple(dict.fromkeys((*on_record, *others)))

    def check_removable(self, name: str) -> None:
        """Raises where a project cannot be taken out of the register: something there has not ended, or still lies."""
        from guildhall.projects.records import living

        if on_record := self.database.store.read(lambda connection: living(connection, name)):
            more = f" and {len(on_record) - 10} more" if len(on_record) > 10 else ""
            raise Conflict(
                f"the project {name} has work that has not ended: {', '.join(on_record[:10])}{more}",
                hint="End it first: `guild show ID` says how it stands, `guild stop ID` ends it; what has failed or "
                "was cancelled is given up with `guild commission abandon ID`.",
            )
        if places := self.worktrees.activities(name):
            raise Conflict(
                f"the project {name} has checkouts still, though all work there has ended: {', '.join(places[:10])}",
                where=str(self.environment.home.worktrees / name),
                hint="They are put away at the end, or at the next start (guild hall stop). hall.log says what was in "
                "the way of one that stays; move it elsewhere.",
            )

    @lazy
    def commissions(self) -> Commissions:
        """The commissions of all projects."""
        from guildhall.projects.commissions.context import CommissionContext
        from guildhall.projects.commissions.service import Commissions

        return Commissions(
            CommissionContext(
                store=self.database.store,
                clock=self.environment.clock,
                history=self.database.history,
                asks=self.database.asks,
                redact=self.redact,
                projects=Environment.projects.of(self.environment),
                branches=self.branches,
                worktrees=self.worktrees,
                runs=RunServices.runs.of(self._main),
                is_alive=self._main.is_alive,
                find_worker=self._find_worker,
                models=self.usable_models,
                output_schema=self.workers.output_schema,
                frame_at=self.environment.hall_frame,
                max_running=self._max_commissions,
                request_meeting=self._request_conflict_meeting,
                decline_meeting=self._decline_conflict_meeting,
                readonly=self.environment.readonly,
            )
        )

    def _max_commissions(self) -> int:
        home = self.environment.home.path
        return self.environment.settings(self.environment.hall_frame(home)).commissions.max

    def _decline_conflict_meeting(self, run: str) -> Awaitable[None]:
        return self.meetings.call_off(run, "the conflict is resolved")

    async def _request_conflict_meeting(self, commission: Commission) -> None:
        """Request a meeting about a merge conflict, with the worker whose work it is."""
        if commission.run is None:
            return
        topic = f"Merge conflict in {commission.title} ({commission.id}): {', '.join(commission.conflict)}"
        project = self.projects.get(commission.project)
        await self.meetings.request(project, commission.worker, topic, by="hall", made_by=commission.run)

    def tools(self, worker: Worker, frame: Frame, run: str, context: str) -> tuple[Tool, ...]:
        """Return the tools that a worker has in a project without declaring them, besides the base toolbox.

        `context` is what its run is part of: "run", "called" by another run, or the name of its owner's tools.
        """
        project = self.projects.at(frame.root)
        artifacts = self._artifact_tools(project, worker.name, frame) if project is not None else ()
        if worker.scope != "shipped":
            return artifacts

        return (*artifacts, *make_manager_tools(self, worker, frame, run, context))

    def _artifact_tools(self, project: Project, author: str, frame: Frame) -> tuple[Tool, ...]:
        """Return the tools for a project's artifacts: in the request's own checkout, or on the integration branch."""
        from guildhall.projects.artifacts import Artifacts, InWorktree, OnBranch, artifact_toolbox

        own = frame.worktree
        shelf = OnBranch(self.branches(project), author) if own is None else InWorktree(own)
        return artifact_toolbox(Artifacts(shelf), lambda: self.environment.clock.now().date().isoformat()).tools

    def close(self) -> None:
        """Stop waking commissions and meetings that wait. Do nothing if neither was used."""
        for part in (ProjectServices.commissions, ProjectServices.meetings):
            if (built := part.of(self).peek()) is not None:
                built.close()


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
