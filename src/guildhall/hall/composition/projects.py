"""What the guild works for: the projects of a home, their branches and worktrees, and what workers are given there."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, cast

from guildhall.core.errors import Conflict, GuildError
from guildhall.core.ids import is_name
from guildhall.hall.composition.database import Record
from guildhall.hall.composition.lazy import lazy
from guildhall.projects.model import Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from guildhall.core.config import Settings
    from guildhall.core.events import EventBus
    from guildhall.core.frame import Frame
    from guildhall.hall.composition.environment import Environment
    from guildhall.hall.composition.hall import Hall
    from guildhall.models.model import Source
    from guildhall.projects.branches import Branches
    from guildhall.projects.commissions.model import Commission
    from guildhall.projects.commissions.service import Commissions
    from guildhall.projects.git import Git
    from guildhall.projects.identity import Identities
    from guildhall.projects.meetings.service import Meetings
    from guildhall.projects.model import Project, ProjectShown
    from guildhall.projects.redaction import Redactions
    from guildhall.projects.registry import Projects
    from guildhall.projects.usable import UsableModels
    from guildhall.projects.worktrees import Worktrees
    from guildhall.runs.lifecycle import Runs
    from guildhall.runs.planner import Planner
    from guildhall.runs.purpose import RunKind
    from guildhall.runs.seat import Seating
    from guildhall.runs.supply import Supply
    from guildhall.tools.model import Tool
    from guildhall.workers.model import Worker


_log = logging.getLogger("guildhall.hall")


class Guild(Record):
    """The part of a hall that has projects."""

    if TYPE_CHECKING:

        @lazy
        def runs(self) -> Runs: ...

        @lazy
        def supply(self) -> Supply: ...

        bus: EventBus
        readonly: bool
        environment: Environment
        environ: Mapping[str, str]

        @lazy
        def planner(self) -> Planner: ...

        settings: Callable[[Frame], Settings]

        def source(self, model: str, frame: Frame, login: bool = False) -> Source: ...

        def is_alive(self, run: str) -> bool: ...

        def for_new_work(self, name: str, frame: Frame) -> Worker: ...

    @property
    def projects(self) -> Projects:
        return self.environment.projects

    def git(self, project: Project) -> Git:
        """Git for a project's repository."""
        from guildhall.projects.git import Git

        key = (project.name, project.path)
        if key not in self._gits:
            self._forget_git(project.name)  # the name may come back to where it was: then it is claimed again
            self._claim(project)
            self._gits[key] = Git(project.path, self.home.desks / project.name)
        return self._gits[key]

    @lazy
    def _gits(self) -> dict[Any, Git]:
        return {}

    @lazy
    def identities(self) -> Identities:
        from guildhall.projects.identity import Identities

        return Identities(self.home, self.store)

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
        if self.readonly or not project.path.is_dir():  # where its folder is gone, git says so
            return
        try:
            self.identities.claim(project)
        except OSError as error:
            hint = "The hall has to write there."
            raise Conflict(f"{project.name}: {error.strerror}", where=error.filename, hint=hint) from None

    def branches(self, project: Project) -> Branches:
        """The hall's branches of a project."""
        from guildhall.projects.branches import Branches

        return Branches(project, self.git(project), self.redact)

    @lazy
    def redact(self) -> Redactions:
        """Texts as they may come into a repository, also where an earlier hall knew a secret that this one does not."""
        from guildhall.projects.redaction import Redactions

        return Redactions(self.store, self.environment.secrets, readonly=self.readonly)

    def _found(self, name: str, frame: Frame) -> Worker:
        """A worker that may be given work; whoever gives it brings their secrets along."""
        self.environment.secrets.learn({**frame.env, **frame.keys})
        return self.for_new_work(name, frame)

    @lazy
    def usable_models(self) -> UsableModels:
        """What is known of models before anybody is asked."""
        from guildhall.projects.usable import UsableModels

        return UsableModels(settings=self.settings, source=self.source, priced=self._priced)

    def _priced(self, model: str, frame: Frame) -> bool | None:
        return self.planner.priced(model, frame)

    @lazy
    def worktrees(self) -> Worktrees:
        from guildhall.projects.worktrees import Worktrees

        return Worktrees(self.home, self.git)

    @lazy
    def meetings(self) -> Meetings:
        """The conversations of people with workers, in projects."""
        from guildhall.hall.composition.callee_trust import demand_trust_again
        from guildhall.projects.meetings.context import MeetingContext
        from guildhall.projects.meetings.service import Meetings

        context = MeetingContext(
            home=self.home,
            store=self.store,
            clock=self.clock,
            history=self.history,
            projects=lambda: self.projects,
            branches=self.branches,
            worktrees=self.worktrees,
            runs=lambda: self.runs,
            is_alive=self.is_alive,
            bus=self.bus,
            redact=self.redact,
            find_worker=self._found,
            models=self.usable_models,
            check_trust=lambda run, frame: demand_trust_again(cast("Hall", self), run, frame),
            frame_at=lambda place: self.environment.frame_at(place, place),
        )
        return Meetings(context)

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
                missing = self.worktrees.missing(project)
                for _, place, _, _ in missing:
                    self.commissions.record_lost_checkout(place)
                self.worktrees.restore(missing)
            except GuildError as error:
                _log.warning("the worktrees of %s: %s", project.name, error)

    def living(self, project: str) -> tuple[str, ...]:
        """The commissions and meetings of a project that have not ended, and whatever else has a worktree there."""
        from guildhall.projects.commissions.model import parse_checkout_name
        from guildhall.projects.records import living

        on_record = self.store.read(lambda connection: living(connection, project))
        others = [parse_checkout_name(place) or place for place in self.worktrees.activities(project)]
        return tuple(dict.fromkeys((*on_record, *others)))

    def demand_removable(self, name: str) -> None:
        """Raises where a project cannot be taken out of the register: something there has not ended, or still lies."""
        from guildhall.projects.records import living

        if on_record := self.store.read(lambda connection: living(connection, name)):
            more = f" and {len(on_record) - 10} more" if len(on_record) > 10 else ""
            raise Conflict(
                f"the project {name} has work that has not ended: {', '.join(on_record[:10])}{more}",
                hint="End it first: `guild show ID` says how it stands, `guild stop ID` ends it; what has failed or "
                "was cancelled is given up with `guild commission abandon ID`.",
            )
        if places := self.worktrees.activities(name):
            raise Conflict(
                f"the project {name} has checkouts still, though all work there has ended: {', '.join(places[:10])}",
                where=str(self.home.worktrees / name),
                hint="They are put away at the end, or at the next start (guild hall stop). hall.log says what was in "
                "the way of one that stays; move it elsewhere.",
            )

    def find_worker(self, name: str, frame: Frame) -> Worker:
        """A worker by name or file. The manager asks first about what the settings say."""
        worker = super().find_worker(name, frame)
        self.environment.policy.check_worker(worker, frame)
        if worker.scope != "shipped":
            return worker
        from guildhall.hall.composition.managing import ruled

        return ruled(worker, self.settings(frame).manager.asks_before)

    def seating(self, kind: RunKind) -> Seating | None:
        """Return the owner of the runs of this kind, or None if they have no owner or a workflow owns them."""
        if kind == "meeting":
            return self.meetings
        return self.commissions if kind == "commission" else None

    def seatings(self) -> tuple[Seating, ...]:
        """All who give runs a seat of their own."""
        return (self.commissions, self.meetings)

    @lazy
    def commissions(self) -> Commissions:
        """The commissions of all projects."""
        from guildhall.projects.commissions.context import CommissionContext
        from guildhall.projects.commissions.service import Commissions

        return Commissions(
            CommissionContext(
                store=self.store,
                clock=self.clock,
                history=self.history,
                asks=self.asks,
                redact=self.redact,
                projects=lambda: self.projects,
                branches=self.branches,
                worktrees=self.worktrees,
                runs=lambda: self.runs,
                is_alive=self.is_alive,
                find_worker=self._found,
                models=self.usable_models,
                output_schema=lambda worker, frame: self.supply.output_schema(worker, frame),
                frame_at=self.environment.hall_frame,
                max_running=lambda: self.settings(self.environment.hall_frame(self.home.path)).commissions.max,
                request_meeting=self.request_conflict_meeting,
                decline_meeting=lambda run: self.meetings.call_off(run, "the conflict is resolved"),
                readonly=self.readonly,
            )
        )

    async def request_conflict_meeting(self, commission: Commission) -> None:
        """Request a meeting about a merge conflict, with the worker whose work it is."""
        if commission.run is None:
            return
        topic = f"Merge conflict in {commission.title} ({commission.id}): {', '.join(commission.conflict)}"
        project = self.projects.get(commission.project)
        await self.meetings.request(project, commission.worker, topic, by="hall", made_by=commission.run)

    def provided(self, worker: Worker, frame: Frame, run: str, context: str) -> tuple[Tool, ...]:
        """What a worker is given where it works without its declaring it, beside the base toolbox.

        `context` is what its run is part of: "run", "called" by another one, or the name of its seat's tools.
        """
        project = self.projects.at(frame.root)
        artifacts = self.artifact_tools(project, worker.name, frame) if project is not None else ()
        if worker.scope != "shipped":
            return artifacts
        from guildhall.hall.composition.managing import managing

        return (*artifacts, *managing(self, worker, frame, run, context))

    def artifact_tools(self, project: Project, author: str, frame: Frame) -> tuple[Tool, ...]:
        """The tools for a project's artifacts: those of the request's own checkout, or of the integration branch."""
        from guildhall.projects.artifact_tools import artifact_toolbox
        from guildhall.projects.artifacts import Artifacts, InWorktree, OnBranch

        own = frame.worktree
        shelf = OnBranch(self.branches(project), author) if own is None else InWorktree(own)
        return artifact_toolbox(Artifacts(shelf), lambda: self.clock.now().date().isoformat()).tools
