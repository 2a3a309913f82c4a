"""The manager's tools: let the manager create and control commissions, request meetings and open pull requests.

This is a system toolbox: only the manager that ships with Guildhall has it (WKR-26). The checks and the model of a
commission are not arguments, because only the user sets them.
Does not implement the operations (`commissions/service.py`, `meetings/service.py`, `pull_request.py`).

Invariant: a repeated call with an equal key has no second effect, because its result carries the mark of the call.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from guildhall.activities.contract import output_text
from guildhall.core.errors import Refused, UsageError
from guildhall.core.text import check_text
from guildhall.projects.commissions.model import Commission, CommissionDetails, Draft, repository_path
from guildhall.projects.commissions.states import parse_status
from guildhall.projects.meetings.model import Meeting, topic_line
from guildhall.tools.definition import bind_tools, with_call_keys
from guildhall.workers.registry import SHIPPED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from guildhall.core.frame import Frame
    from guildhall.projects.commissions.service import Commissions
    from guildhall.projects.manager.pull_request import Review
    from guildhall.projects.meetings.service import Meetings
    from guildhall.projects.model import Project
    from guildhall.projects.registry import Projects
    from guildhall.tools.model import Tool
    from guildhall.workers.model import Worker


_LINE = 300  # characters of what others have written, in a line
_RESULT = 20_000  # of a result, where one is told of


def worker_lines(workers: Sequence[Worker]) -> str:
    """Return a line for each worker: its purpose and what it uses."""
    lines: list[str] = []
    for worker in workers:
        own = worker.definition
        named = ", ".join((*own.tools, *own.toolboxes, *own.members, *own.mcp_servers))
        uses = f" (uses {named})" if named else ""
        lines.append(f"- {worker.name}: {_line(worker.description or 'says nothing of itself')}{uses}")
    return "\n".join(lines) or "There are no workers that could be given work."


def project_lines(projects: Sequence[Project], commissions: Sequence[Commission], *, here: Project | None) -> str:
    """Return a line for each project, with the number of commissions in each status."""
    lines: list[str] = []
    for project in projects:
        counts = Counter(one.status for one in commissions if one.project == project.name)
        stand = ", ".join(f"{number} {status}" for status, number in sorted(counts.items())) or "no commissions"
        own = " (you are in it)" if here is not None and here.name == project.name else ""
        lines.append(f"- {project.name}{own}: the user's branch is {project.branch}; {stand}")
    return "\n".join(lines) or "No project is registered."


def commission_line(shown: CommissionDetails) -> str:
    """Return the line of a commission in a listing."""
    one = shown.commission
    maker = "manager" if one.by == NAME else "user"
    parts = [f"{one.id} {one.status}: {_line(one.title)} ({one.worker}, made by the {maker})"]
    if one.reason and one.status not in ("completed", "in_progress"):
        parts.append(_line(one.reason))
    parts += [f"needs {', '.join(shown.neighbours.missing)}"] if shown.neighbours.missing else []
    parts += [f"comes after {', '.join(shown.neighbours.after)}"] if shown.neighbours.after else []
    parts += [f"makes {', '.join(one.draft.artifacts)}"] if one.draft.artifacts else []
    parts += ["waits for a person"] if shown.waiting else []
    parts += shown.warnings if one.status == "dispatched" else []  # why it does not begin
    if one.summary and one.status == "in_progress":
        parts.append(_line(one.summary))
    return "- " + "; ".join(parts)


def outcome(shown: CommissionDetails) -> str:
    """Return how a commission stands, with its result and its open questions."""
    lines = [commission_line(shown).removeprefix("- ")]
    if shown.commission.status == "completed":
        text = output_text(shown.commission.result).strip() or "nothing but its files"
        cut = f"{text[:_RESULT]}\n[cut: {len(text):,} characters in all]"
        lines.append(f"What it gave:\n{text if len(text) <= _RESULT else cut}")
    lines += [f"It asks a person: {_line(asked.question)}" for asked in shown.asked if asked.answer is None]
    return "\n".join(lines)


def _line(text: str) -> str:
    """Return a text on one line, cut to the maximum length."""
    shown = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return shown if len(shown) <= _LINE else f"{shown[:_LINE]}..."


NAME = "manager"
CONTEXTS = ("run", "meeting")  # in which it has them: when it works for a person, and not for another run
_READS: frozenset[str] = frozenset()
_COMMISSIONS = frozenset({"commission"})
TOOLS = {
    "list_workers": _READS,
    "list_projects": _READS,
    "list_commissions": _READS,
    "create_commission": _COMMISSIONS,
    "dispatch_commission": _COMMISSIONS,
    "redispatch_commission": _COMMISSIONS,
    "cancel_commission": _COMMISSIONS,
    "wait_for_commissions": _READS,
    "open_pull_request": frozenset({"pull_request", "net"}),
    "request_meeting": frozenset({"meeting"}),
}
_SHOWN = 200  # commissions in a listing
_MOST = 50  # that are waited for at once


def is_manager(worker: Worker) -> bool:
    """Return True for the manager that ships with Guildhall. Another worker of that name is not special."""
    return worker.scope == "shipped" and worker.path == SHIPPED / f"{NAME}.yaml"


@dataclass(frozen=True, kw_only=True)
class ManagerContext:
    """What the tools of one run of the manager act on."""

    run: str
    frame: Frame
    projects: Projects
    commissions: Callable[[], Commissions]
    meetings: Callable[[], Meetings]
    workers: Callable[[Frame], Sequence[Worker]]  # those that can be given work
    review: Callable[[Project, str, str], Review]  # puts work up: title and body
    began: Callable[[str], str | None]  # when the call of a key began, the first time

    def project(self, name: str | None) -> Project:
        """Return the project of this name, or without a name the project that the run is in."""
        if name is not None:
            return self.projects.get(name)
        if (found := self.projects.at(self.frame.root)) is not None:
            return found
        known = ", ".join(one.name for one in self.projects.sound()) or "none"
        raise UsageError("project: this folder is in no registered project", hint=f"Name one of: {known}.")

    def within(self, project: Project) -> Frame:
        """Return the frame for work in a project: its workers are those of its own folder."""
        return replace(self.frame, cwd=project.path, root=project.path, worktree=None, interactive=False)


def manager_tools(context: ManagerContext) -> tuple[Tool, ...]:
    """Return the tools of one run of the manager."""
    tools = bind_tools(ManagerTools, TOOLS, runs_in="hall")
    return with_call_keys(tools, lambda key: ManagerTools(context, key))


_Project = Annotated[str | None, Field(description="The project's name; leave it out for the one that you are in.")]
_Id = Annotated[str, Field(description="The id of the commission, such as c-1a2b3c.", max_length=100)]
_Paths = Annotated[list[str] | None, Field(max_length=100)]


class ManagerTools:
    """The tools of one call of the manager. The model reads the docstrings."""

    def __init__(self, context: ManagerContext, key: str) -> None:
        self._context = context
        self._key = key

    async def list_workers(self, project: _Project = None) -> str:
        """The workers that commissions can be given to in a project: names, what each is for, what it can use."""
        frame = self._context.within(self._context.project(project))
        return worker_lines(await asyncio.to_thread(self._context.workers, frame))

    async def list_projects(self) -> str:
        """The registered projects, with how many commissions of each stand how."""
        context = self._context
        every = await asyncio.to_thread(context.projects.all)
        return project_lines(every, await context.commissions().all(), here=context.projects.at(context.frame.root))

    async def list_commissions(self, project: _Project = None, status: str | None = None) -> str:
        """The commissions of a project, newest first: how each stands and why, who made it, what it waits for.

        Args:
            status: Only those that stand so: pending, blocked, dispatched, in_progress, completed, failed, cancelled or
                abandoned.
        """
        context, of = self._context, self._context.project(project)
        only = None if status is None else parse_status(status)
        found = (await context.commissions().all(of.name, only))[::-1]
        shown = [await context.commissions().details(one.id) for one in found[:_SHOWN]]
        lines = [commission_line(one) for one in shown]
        if (more := len(found) - _SHOWN) > 0:
            lines.append(f"... and {more:,} older ones.")
        return "\n".join(lines) or f"There are no such commissions in {of.name}."

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
        """Create a commission: a piece of work for one worker, in a checkout of its own. It begins when it is
        dispatched, and when all that it depends on is there. The user sees it, and can change it or call it off.

        Args:
            title: What it is about, in one line.
            worker: Who is to do it, as list_workers names them.
            prompt: All that the worker has to know. It sees nothing of this conversation.
            dependencies: Paths in the project that must be there before it can begin, such as .lore/plan.md.
            artifacts: Paths in the project that it must have made or kept when it is done.
            linked: Paths in the project that it should read.
            reviewer: A worker that must approve of the work before it is complete.
        """
        context, of = self._context, self._context.project(project)
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
        mark = f"{context.run}#{self._key}"
        made = next((one for one in await context.commissions().all(of.name) if one.made_by == mark), None)
        if made is None:  # else an interrupted call is repeated
            if worker.rpartition("/")[2] == NAME:
                raise Refused("a commission cannot be given to the manager", hint="Choose one who does the work.")
            made = await context.commissions().create(of, draft, context.within(of), by=NAME, made_by=mark)
        return f"{made.id} is {made.status}: {made.title} ({made.worker})."

    async def dispatch_commission(self, id: _Id) -> str:
        """Let a commission that is pending begin, at once or as soon as there is room for it. Returns right away."""
        found = self._somebodys(id)
        if not await self._happened(id, "dispatched"):
            found = await self._context.commissions().dispatch(id, self._in(found))
        return f"{id} is {found.status}."

    async def redispatch_commission(self, id: _Id) -> str:
        """Try a commission anew that has failed or was cancelled: on a new branch, from how the project is now. What it
        did before is kept, and not told to the worker."""
        found = self._somebodys(id)
        if not await self._happened(id, "dispatched"):
            found = await self._context.commissions().redispatch(id, self._in(found))
        return f"{id} is {found.status}; attempt {found.attempt}."

    async def cancel_commission(self, id: _Id, reason: str) -> str:
        """Call off a commission that the manager has made. What it did so far is kept on its branch.

        Args:
            reason: Why; the user reads it.
        """
        found, why = self._known(id), check_text("reason", reason, 2_000).strip()
        if found.by != NAME:
            raise Refused(f"{id} is the user's own: you cannot cancel it", hint="Ask for a meeting about it.")
        if not await self._happened(id, "cancelled"):
            found = await self._context.commissions().cancel(id, f"by the manager: {why}")
        return f"{id} is {found.status}."

    async def _happened(self, id: str, after: str) -> bool:
        """Return True if the commission has reached a status since this call began: an interrupted call is repeated."""
        began = self._context.began(self._key)
        timeline = (await self._context.commissions().details(id)).timeline
        return began is not None and any(one.after == after and one.at >= began for one in timeline)

    async def wait_for_commissions(
        self,
        ids: Annotated[list[str], Field(min_length=1, max_length=_MOST)],
        minutes: Annotated[int, Field(ge=1, le=24 * 60)] = 60,
    ) -> str:
        """Wait until each of these commissions has ended, or waits for a person or for something that nothing makes.
        Says how each stands then, what it gave, or why it failed.

        Args:
            ids: The commissions, by their ids.
            minutes: For how long at most; then it says how far they are.
        """
        for id in ids:
            self._known(id)
        commissions = self._context.commissions()
        await commissions.wait_idle(ids, minutes * 60)
        return "\n\n".join([outcome(await commissions.details(id)) for id in dict.fromkeys(ids)])

    async def open_pull_request(self, title: str, body: str, project: _Project = None) -> str:
        """Put all work that is complete up for the user's review: as a pull request from the integration branch, or on
        a review branch where there can be none. One that is open already is brought up to date. Nothing is merged.

        Args:
            title: One line: what the user gets.
            body: What was done and why, what was decided on the way, what is still open. Markdown.
        """
        context, of = self._context, self._context.project(project)
        return (await asyncio.to_thread(context.review, of, title, body)).text()

    async def request_meeting(self, topic: str, linked: _Paths = None, project: _Project = None) -> str:
        """Ask the user for a meeting: about a decision that is theirs, a finding, work that is stuck. You are told when
        it takes place, in that meeting; go on with what does not hang on it.

        Args:
            topic: The question or the finding, what you know about it, the choices, and what you would do.
            linked: Paths in the project that it is about.
        """
        context, of = self._context, self._context.project(project)
        words, paths = check_text("topic", topic, 10_000).strip(), tuple(linked or ())
        for path in paths:
            repository_path("linked", path)
        made = self._asked_before(of, words)
        if made is None:
            made = await context.meetings().request(
                of, f"shipped/{NAME}", words, by=NAME, made_by=context.run, linked=paths
            )
        return f"The meeting {made.id} is {made.status}: the user finds the request among what needs them."

    def _asked_before(self, project: Project, topic: str) -> Meeting | None:
        """Return the meeting that this call has requested before it was interrupted, or None."""
        context, began, about = self._context, self._context.began(self._key), topic_line(topic)
        for one in context.meetings().all(project.name) if began is not None else ():
            if (one.made_by, one.topic) == (context.run, about) and one.created_at >= str(began):
                return one
        return None

    def _known(self, id: str) -> Commission:
        found = self._context.commissions().get(id)
        self._context.projects.get(found.project)  # one that is registered no more is left alone
        return found

    def _somebodys(self, id: str) -> Commission:
        found = self._known(id)
        if found.by == "artifact":
            raise Refused(
                f"{id} was made again from its artifact: a person has to dispatch it", hint="Ask for a meeting."
            )
        return found

    def _in(self, commission: Commission) -> Frame:
        return self._context.within(self._context.projects.get(commission.project))
