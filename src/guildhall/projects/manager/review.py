"""What is there to review: how the integration branch differs from the user's, and by whose work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from guildhall.core.errors import GuildError
from guildhall.projects.artifact import Artifact
from guildhall.projects.commissions.model import FOLDER as COMMISSIONS
from guildhall.projects.commissions.states import STATUSES
from guildhall.projects.model import INTEGRATION

if TYPE_CHECKING:
    from collections.abc import Mapping

    from guildhall.projects.branches import Branches
    from guildhall.projects.git import Git
    from guildhall.projects.model import Project

REVIEWS = ".lore/reviews"
_FILES = 200  # that are listed
_LISTED = 100  # commissions


@dataclass(frozen=True, kw_only=True)
class Done:
    """A commission whose record differs between the two branches."""

    id: str
    title: str
    worker: str
    status: str


@dataclass(frozen=True, kw_only=True)
class Changes:
    """All that the user's branch lacks."""

    base: str  # the commit of the user's branch
    tip: str  # of the integration branch
    files: Mapping[str, str]  # without the hall's own records: path -> how many lines came and went
    done: tuple[Done, ...]

    @property
    def any(self) -> bool:
        """Whether there is something to look at: files, or a commission whose result is in its own record."""
        return bool(self.files) or any(one.status == "completed" for one in self.done)


def changes(project: Project, git: Git, branches: Branches) -> Changes:
    """What the user's branch lacks, as the branches stand now."""
    base, tip = branches.tip(project.branch), branches.tip(INTEGRATION)
    counted = _counted(git, base, tip)
    records = [path for path in counted if path.startswith(f"{COMMISSIONS}/") and path.endswith(".md")]
    files = {path: one for path, one in counted.items() if not path.startswith((f"{COMMISSIONS}/", f"{REVIEWS}/"))}
    done = tuple(one for path in records[:_LISTED] if (one := _done(branches, path, tip)) is not None)
    return Changes(base=base, tip=tip, files=files, done=done)


def only_records_between(git: Git, before: str, after: str) -> bool:
    """Whether nothing but records of reviews differs between two commits."""
    return all(path.startswith(f"{REVIEWS}/") for path in _counted(git, before, after))


def _counted(git: Git, before: str, after: str) -> dict[str, str]:
    """The files that differ, each with how many lines came and went."""
    raw = git.run("diff", "--numstat", "--no-renames", "--no-ext-diff", "--no-textconv", "-z", before, after, "--").out
    found: dict[str, str] = {}
    for line in raw.decode("utf-8", "replace").split("\0"):
        came, _, rest = line.partition("\t")
        went, _, path = rest.partition("\t")
        if path:
            found[path] = "binary" if came == "-" else f"+{came} -{went}"
    return found


def _done(branches: Branches, path: str, at: str) -> Done | None:
    raw = branches.read(path, at=at)
    if raw is None:
        return None
    try:
        artifact = Artifact.parse(raw.decode())
    except (GuildError, UnicodeDecodeError):  # somebody has edited it into something else
        return None
    if artifact.status not in STATUSES:
        return None
    id = path.removeprefix(f"{COMMISSIONS}/").removesuffix(".md")
    return Done(id=id, title=artifact.title, worker=str(artifact.extra.get("worker", "")), status=artifact.status)


def as_lines(changes: Changes) -> str:
    """The commissions behind it and the files, as markdown. What others have named cannot end the block it is in."""
    lines: list[str] = []
    if done := [one for one in changes.done if one.status == "completed"]:
        lines += ["## Commissions", ""]
        lines += [f"- `{one.id}` {one.title} ({one.worker})" for one in done]
        lines += [""]
    if changes.files:
        lines += ["## Files", ""]
        lines += [f"    {_plain(path)}  {counts}" for path, counts in list(changes.files.items())[:_FILES]]
        if (more := len(changes.files) - _FILES) > 0:
            lines += [f"    ... and {more:,} more"]
        lines += ["", f"The hall's own records, below {COMMISSIONS} and {REVIEWS}, are not listed."]
    return "\n".join(lines).rstrip()


def _plain(path: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in path)
