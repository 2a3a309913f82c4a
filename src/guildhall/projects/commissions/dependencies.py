"""Dependencies: the graph of commissions, which blocks and unblocks commissions when paths change.

A dependency exists when its path is on the integration branch. A dependency on the artifact of another commission
exists when that commission is completed.
Does not start unblocked commissions (`attempts.py`).

Invariant: the graph is derived from the paths in the drafts and never stored.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from guildhall.core.errors import Conflict, GuildError
from guildhall.projects.commissions import records
from guildhall.projects.commissions.model import Commission, Neighbours, parse_artifact_path
from guildhall.projects.model import INTEGRATION

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy import Connection

    from guildhall.projects.commissions.context import CommissionContext

_POLL_INTERVAL_S = 2.0
_log = logging.getLogger("guildhall.commissions")


# the graph


def dependency_graph(commissions: Sequence[Commission]) -> dict[str, list[tuple[str, str]]]:
    """Map the id of each commission to the path and the producer of each of its dependencies."""
    producers: defaultdict[str, list[str]] = defaultdict(list)
    for commission in commissions:
        if commission.status != "abandoned":
            for path in (commission.path, *commission.draft.artifacts):
                producers[path].append(commission.id)
    return {
        commission.id: [(path, id) for path in commission.draft.dependencies for id in producers.get(path, ())]
        for commission in commissions
    }


def check_acyclic(commissions: Sequence[Commission], start: str) -> None:
    """Raise Conflict, naming the cycle, if a commission would depend on itself."""
    graph = dependency_graph(commissions)
    visited: set[str] = set()
    stack: list[tuple[str, tuple[str, ...]]] = [(start, (start,))]
    while stack:
        id, route = stack.pop()
        for path, producer in graph.get(id, ()):
            if producer == start:
                cycle = " -> ".join((*route, path, start))
                hint = "Remove one of these dependencies, or let another commission produce the file."
                raise Conflict(f"dependency cycle: {cycle}", hint=hint)
            if producer not in visited:
                visited.add(producer)
                stack.append((producer, (*route, path, producer)))


def neighbours(commission: Commission, commissions: Sequence[Commission], missing: Sequence[str]) -> Neighbours:
    graph = dependency_graph(commissions)
    return Neighbours(
        missing=missing,
        after=list(dict.fromkeys(producer for _, producer in graph.get(commission.id, ()))),
        before=[id for id, edges in graph.items() if any(producer == commission.id for _, producer in edges)],
    )


def missing_paths(
    dependencies: Iterable[str], exists: Callable[[str], bool], is_completed: Callable[[str], bool]
) -> list[str]:
    def is_met(path: str) -> bool:
        other = parse_artifact_path(path)
        return exists(path) if other is None else is_completed(other)

    return [path for path in dependencies if not is_met(path)]


# blocked and pending


def find_missing(context: CommissionContext, commission: Commission) -> list[str]:
    """Return the dependencies of a commission that do not exist yet."""
    if not commission.draft.dependencies:
        return []
    completed = {other.id for other in context.list_commissions() if other.status == "completed"}
    exists = context.branches_of(commission).has_file
    return missing_paths(commission.draft.dependencies, exists, completed.__contains__)


def missing_link_warnings(context: CommissionContext, commission: Commission) -> list[str]:
    """Return a warning for every linked file that does not exist. Links do not block a commission."""
    branches = context.branches_of(commission)
    absent = [path for path in commission.draft.linked if not branches.has_file(path)]
    return [f"linked: {path} does not exist on {INTEGRATION} (this does not block the commission)" for path in absent]


def blocked_reason(missing: Sequence[str]) -> str:
    return f"waiting for {', '.join(missing)}" if missing else "all dependencies exist"


def follow_user_branch(context: CommissionContext, project: str) -> None:
    """Merge the user's branch, which may contain a missing dependency, into the integration branch. Log errors."""
    try:
        context.branches(context.projects().get(project)).update()
    except GuildError as error:  # reported when a commission is started there
        _log.info("cannot merge the user's branch of %s: %s", project, error)


async def update_blocked(context: CommissionContext, project: str | None = None) -> None:
    """Apply `unblock` and `block` to the commissions whose dependencies have appeared or disappeared."""
    waiting = [other for other in context.list_commissions(project) if other.status in ("pending", "blocked")]
    affected = [other for other in waiting if other.draft.dependencies or other.status == "blocked"]
    for name in dict.fromkeys(commission.project for commission in affected):
        await asyncio.to_thread(follow_user_branch, context, name)
    for commission in affected:
        try:
            await _update(context, commission)
        except GuildError as error:  # the project is not registered or its repository is missing: no change
            _log.info("%s: %s", commission.id, error)


async def _update(context: CommissionContext, commission: Commission) -> None:
    missing = await asyncio.to_thread(find_missing, context, commission)
    if bool(missing) == (commission.status == "blocked"):
        return

    def write(connection: Connection) -> None:
        current = records.find(connection, commission.id)
        if current is not None and current.status == commission.status:
            event = "block" if missing else "unblock"
            reason, data = blocked_reason(missing), {"missing": missing}
            records.record_event(connection, current.id, event, reason, context.now(), data=data)

    await context.store.write(write)


# commits of the user


def _file_fingerprint(path: Path) -> object:
    try:
        file_stat = path.stat()
    except OSError:
        return None
    # The time of the .git folder changes with every file inside it, such as the index.
    return file_stat.st_ino if path.name == ".git" else (file_stat.st_ino, file_stat.st_mtime_ns, file_stat.st_size)


class BranchWatcher:
    """Polls the branches of projects with blocked commissions, and updates the commissions when a branch has moved.

    A poll is a few stat calls. Git runs only if one of their results has changed.
    """

    def __init__(self, context: CommissionContext) -> None:
        self._context = context
        self._fingerprints: dict[str, dict[Path, object]] = {}  # by project: of the files of its branches
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._poll())

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _poll(self) -> None:
        while True:
            await self._context.clock.sleep(_POLL_INTERVAL_S)
            try:
                for project in await asyncio.to_thread(self.find_moved):
                    await update_blocked(self._context, project)
            except GuildError as error:  # for example an invalid config.yaml
                _log.info("%s", error)
            except Exception:  # noqa: BLE001 - the next poll may succeed
                _log.exception("cannot poll the branches of projects")

    def find_moved(self) -> list[str]:
        """Return the projects with blocked commissions whose branches have moved since the last call."""
        before, self._fingerprints = self._fingerprints, {}
        moved: list[str] = []
        for name in self._context.store.read(records.list_projects_with_blocked):
            files = before.get(name)
            if files is None or files != {path: _file_fingerprint(path) for path in files}:
                # Before the commissions are updated, so that a branch that moves meanwhile is noticed.
                files = {path: _file_fingerprint(path) for path in self._ref_paths(name)}
                moved.append(name)
            self._fingerprints[name] = files
        return moved

    def _ref_paths(self, name: str) -> tuple[Path, ...]:
        """Return the files that change when a branch of a project moves or the project is registered elsewhere."""
        projects = self._context.projects()
        paths = (projects.config_path,)
        try:
            project = projects.get(name)
            paths = (*paths, project.path / ".git")
            common = self._context.branches(project).git.common
        except GuildError:  # other commands report the problem of the project
            return paths
        branches = [common / "refs" / "heads" / branch for branch in (project.branch, INTEGRATION)]
        return (*paths, *branches, common / "packed-refs", common / "reftable" / "tables.list")
