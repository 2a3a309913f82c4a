"""The manager's tools: create and control commissions, request meetings and open pull requests.

Only the manager that ships with Guildhall has these tools (WKR-26). The checks and the model of a commission are not
arguments, because only the user may set them.
Does not implement the operations (`commissions/service.py`, `meetings/service.py`, `pull_request.py`).

Invariant: the tools are idempotent by the key of the call.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from guildhall.activities.contract import output_text
from guildhall.core.errors import Refused, UsageError
from guildhall.core.text_checks import check_text
from guildhall.projects.commissions.model import Commission, CommissionDetails, Draft, repository_path
from guildhall.projects.commissions.states import parse_status
from guildhall.projects.meetings.model import Meeting, topic_line
from guildhall.tools.definition import bind_tools, with_call_keys
from guildhall.workers.registry import SHIPPED

if TYPE_CHECKING:
    from guildhall.core.request_frame import Frame
    from guildhall.projects.commissions.service import Commissions
    from guildhall.projects.manager.pull_request import Review
    from guildhall.projects.meetings.service import Meetings
    from guildhall.projects.model import Project
    from guildhall.projects.registry import Projects
    from guildhall.tools.model import Tool
    from guildhall.workers.model import Worker


_MAX_LINE_CHARS = 300
_MAX_RESULT_CHARS = 20_000


def render_workers(workers: Sequence[Worker]) -> str:
    """Return a line for each worker, with its purpose and its tools."""
    lines: list[str] = []
    for worker in workers:
        definition = worker.definition
        names = (*definition.tools, *definition.toolboxes, *definition.members, *definition.mcp_servers)
        tools = f" (uses {', '.join(names)})" if names else ""
        lines.append(f"- {worker.name}: {_line(worker.description or 'no description')}{tools}")
    return "\n".join(lines) or "No workers."


def render_projects(projects: Sequence[Project], commissions: Sequence[Commission], *, current: Project | None) -> str:
    """Return a line for each project, with the number of commissions in each status."""
    lines: list[str] = []
    for project in projects:
        counts = Counter(commission.status for commission in commissions if commission.project == project.name)
        summary = ", ".join(f"{number} {status}" for status, number in sorted(counts.items())) or "no commissions"
        note = " (your current project)" if current is not None and current.name == project.name else ""
        lines.append(f"- {project.name}{note}: user's branch {project.branch}; {summary}")
    return "\n".join(lines) or "No projects."


def render_commission(details: CommissionDetails) -> str:
    """Return the line of a commission in a listing."""
    commission, neighbours = details.commission, details.neighbours
    author = "manager" if commission.by == NAME else "user"
    parts = [
        f"{commission.id} {commission.status}: {_line(commission.title)} ({commission.worker}, created by the {author})"
    ]
    if commission.reason and commission.status not in ("completed", "in_progress"):
        parts.append(_line(commission.reason))
    parts += [str(commission.diffstat)] if commission.diffstat and commission.status == "completed" else []
    parts += [f"needs {', '.join(neighbours.missing)}"] if neighbours.missing else []
    parts += [f"depends on {', '.join(neighbours.after)}"] if neighbours.after else []
    parts += [f"must produce {', '.join(commission.draft.artifacts)}"] if commission.draft.artifacts else []
    parts += ["waiting for the user"] if details.waiting else []
    parts += details.warnings if commission.status == "dispatched" else []  # the reason for waiting
    if commission.summary and commission.status == "in_progress":
        parts.append(_line(commission.summary))
    return "- " + "; ".join(parts)


def render_outcome(details: CommissionDetails) -> str:
    lines = [render_commission(details).removeprefix("- ")]
    if details.commission.status == "completed":
        text = output_text(details.commission.result).strip() or "(no text, only files)"
        cut = f"{text[:_MAX_RESULT_CHARS]}\n[cut; {len(text):,} characters in total]"
        lines.append(f"Result:\n{text if len(text) <= _MAX_RESULT_CHARS else cut}")
    lines += [f"Open question: {_line(asked.question)}" for asked in details.asked if asked.answer is None]
    return "\n".join(lines)


def _line(text: str) -> str:
    """Return a text as a single line, cut to the maximum length."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return line if len(line) <= _MAX_LINE_CHARS else f"{line[:_MAX_LINE_CHARS]}..."


NAME = "manager"
CONTEXTS = ("run", "meeting")  # where the manager has these tools: it works for a user, not for another run
_READ: frozenset[str] = frozenset()
_COMMISSION = frozenset({"commission"})
TOOLS = {
    "list_workers": _READ,
    "list_projects": _READ,
    "list_commissions": _READ,
    "create_commission": _COMMISSION,
    "dispatch_commission": _COMMISSION,
    "redispatch_commission": _COMMISSION,
    "cancel_commission": _COMMISSION,
    "wait_for_commissions": _READ,
    "open_pull_request": frozenset({"pull_request", "net"}),
    "request_meeting": frozenset({"meeting"}),
}
_MAX_LISTED = 200  # commissions
_MAX_AWAITED = 50  # commissions in one call


def is_manager(worker: Worker) -> bool:
    """Return True for the manager that ships with Guildhall, not for another worker of that name."""
    return worker.scope == "shipped" and worker.path == SHIPPED / f"{NAME}.yaml"


@dataclass(frozen=True, kw_only=True)
class ManagerContext:
    """The collaborators of the tools in one run of the manager."""

    run: str
    frame: Frame
    projects: Projects
    commissions: Callable[[], Commissions]
    meetings: Callable[[], Meetings]
    list_workers: Callable[[Frame], Sequence[Worker]]  # that can work on commissions
    open_review: Callable[[Project, str, str], Review]  # with a title and a body
    call_started_at: Callable[[str], str | None]  # returns the time when the call with a key first started

    def project(self, name: str | None) -> Project:
        """Return the project of this name, or the project that the run is in if `name` is None."""
        if name is not None:
            return self.projects.get(name)
        if (current := self.projects.find_at(self.frame.root)) is not None:
            return current
        names = ", ".join(project.name for project in self.projects.list_valid())
        hint = f"Name a project: {names}." if names else "Ask the user to register a project."
        raise UsageError("project: the current folder is not in a registered project", hint=hint)

    def project_frame(self, project: Project) -> Frame:
        """Return the frame for work in a project, with the workers of its folder."""
        return replace(self.frame, cwd=project.path, root=project.path, worktree=None, interactive=False)


def manager_tools(context: ManagerContext) -> tuple[Tool, ...]:
    tools = bind_tools(ManagerTools, TOOLS, runs_in="hall")
    return with_call_keys(tools, lambda key: ManagerTools(context, key))


_Project = Annotated[str | None, Field(description="Name of the project. Omit it for your current project.")]
_Id = Annotated[str, Field(description="Id of the commission, such as c-1a2b3c.", max_length=100)]
_Paths = Annotated[list[str] | None, Field(max_length=100)]


class ManagerTools:
    """The tools of one call of the manager. The model reads the docstrings of the methods."""

    def __init__(self, context: ManagerContext, key: str) -> None:
        self._context = context
        self._key = key

    async def list_workers(self, project: _Project = None) -> str:
        """List the workers of a project that can work on commissions, with purpose and tools."""
        frame = self._context.project_frame(self._context.project(project))
        return render_workers(await asyncio.to_thread(self._context.list_workers, frame))

    async def list_projects(self) -> str:
        """List the registered projects, with the number of commissions in each status."""
        context = self._context
        projects = await asyncio.to_thread(context.projects.all)
        current = context.projects.find_at(context.frame.root)
        return render_projects(projects, await context.commissions().list_commissions(), current=current)

    async def list_commissions(self, project: _Project = None, status: str | None = None) -> str:
        """List the commissions of a project, newest first, with status, reason, author and dependencies.

        Args:
            status: List only commissions in this status: pending, blocked, dispatched, in_progress, completed, failed,
                cancelled or abandoned.
        """
        commissions, name = self._context.commissions(), self._context.project(project).name
        listed = (await commissions.list_commissions(name, None if status is None else parse_status(status)))[::-1]
        lines = [render_commission(await commissions.details(commission.id)) for commission in listed[:_MAX_LISTED]]
        if (omitted := len(listed) - _MAX_LISTED) > 0:
            lines.append(f"... and {omitted:,} older commissions.")
        return "\n".join(lines) or f"No such commissions in {name}."

    async def create_commission(
        self,
        title: str,
        worker: str,
        prompt: str,
        dependencies: _Paths = None,
        artifacts: _Paths = None,
        linked: _Paths = None,
        reviewer: str | None = None,
        project: _Project = None,
    ) -> str:
        """Create a commission: a task for one worker in its own checkout. It starts after you dispatch it and all of
        its dependencies exist. The user sees it and can change or cancel it.

        Args:
            title: The task in one line.
            worker: Name of the worker, from list_workers.
            prompt: Everything that the worker needs to know. It does not see this conversation.
            dependencies: Paths in the project that must exist before it starts, such as .lore/plan.md.
            artifacts: Paths in the project that must exist when it ends. The result is rejected without them.
            linked: Paths in the project that the worker should read.
            reviewer: Name of a worker that must approve the work before it is merged.
        """
        context, target = self._context, self._context.project(project)
        draft = Draft(
            title=title,
            worker=worker,
            prompt=prompt,
            dependencies=tuple(dependencies or ()),
            artifacts=tuple(artifacts or ()),
            linked=tuple(linked or ()),
            reviewer=reviewer,
        )
        draft.check()
        made_by = f"{context.run}#{self._key}"
        existing = await context.commissions().list_commissions(target.name)
        created = next((commission for commission in existing if commission.made_by == made_by), None)
        if created is None:  # else an interrupted call is repeated
            if worker.rpartition("/")[2] == NAME:
                raise Refused(
                    f"invalid worker {worker!r}: the manager cannot work on commissions", hint="Choose another worker."
                )
            frame = context.project_frame(target)
            created = await context.commissions().create(target, draft, frame, by=NAME, made_by=made_by)
        return f"{created.id} is {created.status}: {created.title} ({created.worker})."

    async def dispatch_commission(self, id: _Id) -> str:
        """Queue a pending commission. It starts when a slot is free. Returns immediately."""
        commission = self._get_dispatchable(id)
        if not await self._has_reached(id, "dispatched"):
            commission = await self._context.commissions().dispatch(id, self._project_frame(commission))
        return f"{id} is {commission.status}."

    async def redispatch_commission(self, id: _Id) -> str:
        """Retry a failed or cancelled commission on a new branch from the current integration branch. The worker does
        not see earlier attempts."""
        commission = self._get_dispatchable(id)
        if not await self._has_reached(id, "dispatched"):
            commission = await self._context.commissions().redispatch(id, self._project_frame(commission))
        return f"{id} is {commission.status}; attempt {commission.attempt}."

    async def cancel_commission(self, id: _Id, reason: str) -> str:
        """Cancel a commission that you have created. Its work so far stays on its branch.

        Args:
            reason: The reason, for the user.
        """
        commission, reason = self._get(id), check_text("reason", reason, 2_000).strip()
        if commission.by != NAME:
            raise Refused(f"cannot cancel {id}: the user created it", hint="Request a meeting about it.")
        if not await self._has_reached(id, "cancelled"):
            commission = await self._context.commissions().cancel(id, f"by the manager: {reason}")
        return f"{id} is {commission.status}."

    async def _has_reached(self, id: str, status: str) -> bool:
        """Return True if a commission has reached a status since this call first started."""
        start = self._context.call_started_at(self._key)
        timeline = (await self._context.commissions().details(id)).timeline
        return start is not None and any(entry.after == status and entry.at >= start for entry in timeline)

    async def wait_for_commissions(
        self,
        ids: Annotated[list[str], Field(min_length=1, max_length=_MAX_AWAITED)],
        minutes: Annotated[int, Field(ge=1, le=24 * 60)] = 60,
    ) -> str:
        """Wait until every commission has finished, needs the user, or depends on a file that no commission produces.
        Returns the status of each commission, with its result or the reason for its failure.

        Args:
            ids: Ids of the commissions.
            minutes: Maximum time to wait. After that, the current status is returned.
        """
        for id in ids:
            self._get(id)
        commissions = self._context.commissions()
        await commissions.wait_idle(ids, minutes * 60)
        return "\n\n".join([render_outcome(await commissions.details(id)) for id in dict.fromkeys(ids)])

    async def open_pull_request(self, title: str, body: str, project: _Project = None) -> str:
        """Submit all completed work for the user's review: as a pull request from the integration branch, or as a
        review branch if a pull request is not possible. An open pull request is updated. Nothing is merged.

        Args:
            title: The change in one line.
            body: Markdown: the changes and their reasons, the decisions, and open points.
        """
        open_review, target = self._context.open_review, self._context.project(project)
        return (await asyncio.to_thread(open_review, target, title, body)).text()

    async def request_meeting(
        self,
        topic: str,
        linked: _Paths = None,
        project: _Project = None,
        max_turns: int | None = None,
        budget: float | None = None,
    ) -> str:
        """Ask the user for a meeting about a decision, a finding or a problem that only the user can resolve. The
        answer comes in that meeting; continue with work that does not depend on it.

        Args:
            topic: The question or finding, the facts, the options, and your recommendation.
            linked: Paths in the project that the meeting is about.
            max_turns: Maximum number of model calls for each answer in the meeting.
            budget: Maximum cost of the meeting in US dollars.
        """
        context, target = self._context, self._context.project(project)
        topic, paths = check_text("topic", topic, 10_000).strip(), tuple(linked or ())
        for path in paths:
            repository_path("linked", path)
        meeting = self._find_requested(target, topic)
        if meeting is None:
            worker = f"shipped/{NAME}"
            meeting = await context.meetings().request(
                target, worker, topic, by=NAME, made_by=context.run, linked=paths, max_turns=max_turns, budget=budget
            )
        return f"Meeting {meeting.id} is {meeting.status}. The user sees the request in the inbox."

    def _find_requested(self, project: Project, topic: str) -> Meeting | None:
        """Return the meeting that this call requested before it was interrupted, or None."""
        context, start, line = self._context, self._context.call_started_at(self._key), topic_line(topic)
        for meeting in context.meetings().list_meetings(project.name) if start is not None else ():
            if (meeting.made_by, meeting.topic) == (context.run, line) and meeting.created_at >= str(start):
                return meeting
        return None

    def _get(self, id: str) -> Commission:
        """Return a commission. Raise NotFound if its project is not registered."""
        commission = self._context.commissions().get(id)
        self._context.projects.get(commission.project)
        return commission

    def _get_dispatchable(self, id: str) -> Commission:
        commission = self._get(id)
        if commission.by == "artifact":
            message = f"cannot dispatch {id}: only the user may dispatch a commission rebuilt from its artifact"
            raise Refused(message, hint="Request a meeting about it.")
        return commission

    def _project_frame(self, commission: Commission) -> Frame:
        return self._context.project_frame(self._context.projects.get(commission.project))
