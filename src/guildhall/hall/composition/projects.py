"""Project services of a hall: connect registration, git, commissions, meetings and the manager's tools.

Does not contain the rules of commissions, meetings or branches: `guildhall.projects` does.

Invariant: a hall that may write ties a project's name to its repository before it uses that repository.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING

from guildhall.core.errors import Conflict, GuildError
from guildhall.core.ids import is_name
from guildhall.hall.composition.environment import peek
from guildhall.projects.activity_records import PersistentRedactor, list_unfinished
from guildhall.projects.commissions import states as commission_states
from guildhall.projects.commissions.model import Commission, parse_checkout_name
from guildhall.projects.manager.pull_request import PullRequests, Review, UserPrograms
from guildhall.projects.manager.tools import CONTEXTS, ManagerContext, is_manager, manager_tools
from guildhall.projects.meetings import states as meeting_states
from guildhall.projects.model import Problem, Project, ProjectEntry
from guildhall.runs.record.entries import ToolStarted
from guildhall.runs.record.journal import entries_with

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.request_frame import Frame
    from guildhall.hall.composition.run_services import RunServices
    from guildhall.projects.commissions.service import Commissions
    from guildhall.projects.git.integration_branch import Branches
    from guildhall.projects.git.repository import Git
    from guildhall.projects.git.worktrees import Worktrees
    from guildhall.projects.meetings.service import Meetings
    from guildhall.projects.registry import Projects
    from guildhall.projects.repository_identity import Identities
    from guildhall.projects.workspace import WorkerChecks
    from guildhall.tools.model import Tool
    from guildhall.workers.lifecycle import Use
    from guildhall.workers.model import Worker


_log = logging.getLogger("guildhall.hall")


class ProjectServices:
    def __init__(self, main: RunServices) -> None:
        """`main`: the services of the home's own database, where the runs of projects are."""
        self.environment = main.environment
        self.workers = main.workers
        self.history = main.history
        self._main = main
        self._gits: dict[tuple[str, Path], Git] = {}

    @property
    def projects(self) -> Projects:
        return self.environment.projects

    def git(self, project: Project) -> Git:
        from guildhall.projects.git.repository import Git

        key = (project.name, project.path)
        if key not in self._gits:
            self._forget_git(project.name)  # a name that returns to an earlier repository is claimed again
            self._claim(project)
            self._gits[key] = Git(project.path, self.environment.home.git_dirs / project.name)
        return self._gits[key]

    @cached_property
    def identities(self) -> Identities:
        from guildhall.projects.repository_identity import Identities

        return Identities(self.environment.home, self._main.store)

    def add_project(self, path: Path, name: str | None, branch: str | None) -> Project:
        """Register a repository. A moved repository keeps its name, its settings and its records."""
        missing = [known for known in self.projects.list_valid() if not known.path.exists()] if path.is_dir() else []
        moved = next((known for known in missing if self.identities.is_bound(known.name, path)), None)
        if moved is not None and name not in (None, moved.name):
            message = f"cannot register the repository: already registered as {moved.name!r} (was at {moved.path})"
            hint = f"Omit --name to move {moved.name!r} here with its records."
            raise Conflict(message, where=str(path), hint=hint)
        project = self.projects.move(moved, path, branch) if moved else self.projects.add(path, name, branch)
        self._forget_git(project.name)
        self._claim(project)
        return project

    def remove_project(self, name: str) -> ProjectEntry:
        """Remove a project from the register. Its records stay with the repository, not with the name."""
        removed = self.projects.remove(name)
        self._forget_git(name)
        if is_name(name):  # config.yaml may contain any text
            self.identities.release(name, removed.project)
        return removed

    def check_project(self, name: str) -> list[Problem]:
        """Return the problems of a project's entry, repository and branches."""
        problems = self.projects.check(name)
        if any(problem.blocks for problem in problems):
            return problems
        try:
            self.branches(self.projects.get(name)).check_updatable()
        except GuildError as error:
            problems.insert(0, Problem(message=error.message, hint=error.hint))
        return problems

    def _forget_git(self, name: str) -> None:
        for key in [key for key in self._gits if key[0] == name]:
            del self._gits[key]

    def _claim(self, project: Project) -> None:
        """Tie the project's name to its repository."""
        if self.environment.readonly or not project.path.is_dir():  # git reports a missing folder
            return
        try:
            self.identities.claim(project)
        except OSError as error:
            message = f"cannot record the identity of the repository: {error.strerror}"
            raise Conflict(message, where=error.filename, hint="Make this path writable for your user.") from None

    def branches(self, project: Project) -> Branches:
        from guildhall.projects.git.integration_branch import Branches

        return Branches(project, self.git(project), self.redact)

    @cached_property
    def redact(self) -> PersistentRedactor:
        """Return the redactor of texts for a repository. It redacts the secrets of earlier halls too."""
        return PersistentRedactor(self._main.store, self.environment.secrets, readonly=self.environment.readonly)

    def _find_worker(self, name: str, frame: Frame, use: Use = "name") -> Worker:
        """Return a worker that accepts work. The redactor learns the secrets of the caller."""
        self.environment.secrets.add({**frame.env, **frame.keys})
        return self.workers.find_for_work(name, frame, use)

    @cached_property
    def worker_checks(self) -> WorkerChecks:
        from guildhall.projects.workspace import WorkerChecks

        return WorkerChecks(
            load_settings=self.environment.settings,
            find_source=self.workers.model_source,
            is_priced=self.workers.has_price,
            find_problems=partial(self.workers.preflight.find_problems, script=False),
        )

    @cached_property
    def worktrees(self) -> Worktrees:
        from guildhall.projects.git.worktrees import Worktrees

        return Worktrees(self.environment.home, self.git)

    @cached_property
    def meetings(self) -> Meetings:
        from guildhall.projects.meetings.context import MeetingContext
        from guildhall.projects.meetings.service import Meetings

        return Meetings(
            MeetingContext(
                home=self.environment.home,
                store=self._main.store,
                clock=self.environment.clock,
                history=self.history,
                projects=lambda: self.environment.projects,
                branches=self.branches,
                worktrees=self.worktrees,
                runs=lambda: self._main.runs,
                is_alive=self._main.is_alive,
                bus=self._main.bus,
                redact=self.redact,
                find_worker=self._find_worker,
                checks=self.worker_checks,
                check_trust=lambda run, frame: self.workers.check_trust_again(self.history.get(run), frame),
                frame_at=lambda folder: self.environment.frame_at(folder, folder),
            )
        )

    def restore_worktrees(self) -> None:
        """Restore checkouts that were deleted by hand while no hall was running, and log them."""
        try:
            projects = self.projects.list_valid()
        except GuildError as error:  # an unreadable config.yaml must not stop recovery
            _log.warning("cannot restore worktrees: %s", error)
            return
        for project in projects:
            try:
                self._claim(project)
                for lost in self.worktrees.list_missing(project):
                    self.commissions.record_lost_checkout(lost.activity)
                    self.worktrees.restore(project, lost.activity, lost.branch, lost.scope)
            except GuildError as error:
                _log.warning("cannot restore the worktrees of %s: %s", project.name, error)

    def unfinished_work(self, project: str) -> tuple[str, ...]:
        """Return the unfinished commissions and meetings of a project, and the names of other worktrees there."""
        checkouts = [parse_checkout_name(name) or name for name in self.worktrees.list_activities(project)]
        return tuple(dict.fromkeys((*self._list_unfinished(project), *checkouts)))

    def _list_unfinished(self, project: str) -> tuple[str, ...]:
        final = commission_states.FINAL | meeting_states.ENDED
        return self._main.store.read(lambda connection: list_unfinished(connection, project, final))

    def check_removable(self, name: str) -> None:
        """Raise Conflict if a project has unfinished work or checkouts."""
        if unfinished := self._list_unfinished(name):
            more = f" and {len(unfinished) - 10} more" if len(unfinished) > 10 else ""
            raise Conflict(
                f"cannot remove the project {name} with unfinished work: {', '.join(unfinished[:10])}{more}",
                hint="Cancel the work with `guild stop ID`. Abandon failed or cancelled commissions with "
                "`guild stop ID --abandon`.",
            )
        if checkouts := self.worktrees.list_activities(name):
            raise Conflict(
                f"cannot remove the project {name} with checkouts of finished work: {', '.join(checkouts[:10])}",
                where=str(self.environment.home.worktrees / name),
                hint="Restart the hall (guild hall stop) to delete the checkouts. Move a checkout that stays to "
                "another folder; hall.log has the reason.",
            )

    @cached_property
    def commissions(self) -> Commissions:
        from guildhall.projects.commissions.context import CommissionContext
        from guildhall.projects.commissions.service import Commissions

        home = self.environment.home.path
        return Commissions(
            CommissionContext(
                store=self._main.store,
                clock=self.environment.clock,
                history=self.history,
                asks=self._main.asks,
                redact=self.redact,
                projects=lambda: self.environment.projects,
                branches=self.branches,
                worktrees=self.worktrees,
                runs=lambda: self._main.runs,
                is_alive=self._main.is_alive,
                find_worker=partial(self._find_worker, use="dispatch"),
                checks=self.worker_checks,
                load_output_schema=self.workers.preflight.load_output_schema,
                frame_at=self.environment.hall_frame,
                max_running=lambda: self.environment.settings(self.environment.hall_frame(home)).commissions.max,
                request_meeting=self._request_conflict_meeting,
                withdraw_meeting=lambda run: self.meetings.withdraw(run, "the conflict is resolved"),
                readonly=self.environment.readonly,
            )
        )

    async def _request_conflict_meeting(self, commission: Commission) -> None:
        """Request a meeting about a merge conflict, with the worker whose work it is."""
        if commission.run is None:
            return
        topic = f"Merge conflict in {commission.title} ({commission.id}): {', '.join(commission.conflict)}"
        project = self.projects.get(commission.project)
        await self.meetings.request(project, commission.worker, topic, by="hall", made_by=commission.run)

    def tools(self, worker: Worker, frame: Frame, run: str, context: str) -> tuple[Tool, ...]:
        """Return the tools that a worker has in a project without declaring them, except for the base toolbox.

        `context`: "run", "called" for a child run, or the name of the owner's tools.
        """
        project = self.projects.find_at(frame.root)
        artifacts = self._artifact_tools(project, worker.name, frame) if project is not None else ()
        return (*artifacts, *self.manager_tools(worker, frame, run, context))

    def manager_tools(self, worker: Worker, frame: Frame, run: str, context: str) -> tuple[Tool, ...]:
        """Return the manager's tools if the worker is the manager and works for a user."""
        if not is_manager(worker) or context not in CONTEXTS:
            return ()
        return manager_tools(
            ManagerContext(
                run=run,
                frame=frame,
                projects=self.projects,
                commissions=lambda: self.commissions,
                meetings=lambda: self.meetings,
                list_workers=self._workers_for_manager,
                open_review=self._open_pull_request,
                call_started_at=lambda key: self._call_started_at(run, key),
            )
        )

    def _workers_for_manager(self, frame: Frame) -> Sequence[Worker]:
        """Return the usable workers for commissions: not the manager, and not those that only the hall runs."""

        def is_usable(worker: Worker) -> bool:
            try:
                self.worker_checks.check_usable(worker, frame)
            except GuildError:
                return False
            return worker.scope != "shipped" or (worker.definition.base and not is_manager(worker))

        return list(filter(is_usable, self.workers.active_workers(frame)))

    def _open_pull_request(self, project: Project, title: str, body: str) -> Review:
        programs, clock = UserPrograms(project.path, self.environment.environ), self.environment.clock
        git, branches = self.git(project), self.branches(project)
        return PullRequests(project, git=git, branches=branches, programs=programs, clock=clock).open(title, body)

    def _call_started_at(self, run: str, key: str) -> str | None:
        """Return the time when a tool call of a run first started, or None."""
        journal = self.history.journal(run)
        return next((entry.at for entry in entries_with(journal.of(key), ToolStarted)), None)

    def _artifact_tools(self, project: Project, author: str, frame: Frame) -> tuple[Tool, ...]:
        """Return the tools for a project's artifacts: in the request's own checkout, or on the integration branch."""
        from guildhall.projects.artifacts import (
            Artifacts,
            BranchStore,
            CheckoutStore,
            StoreWithRecords,
            artifact_toolbox,
        )

        checkout = frame.worktree
        branches = self.branches(project)
        store = BranchStore(branches, author) if checkout is None else CheckoutStore(checkout)
        return artifact_toolbox(
            Artifacts(StoreWithRecords(store, branches)), lambda: self.environment.clock.now().date().isoformat()
        ).tools

    def close(self) -> None:
        """Stop the timers of waiting commissions and meetings."""
        for part in (ProjectServices.commissions, ProjectServices.meetings):
            if (built := peek(self, part)) is not None:
                built.close()
