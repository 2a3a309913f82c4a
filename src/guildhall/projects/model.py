"""Projects as data: the project, its settings and timeline entries, and the names of the hall's refs.

Does not have I/O: `registry.py` reads projects, and `records.py` stores timelines.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

INTEGRATION = "claude/main"  # the branch that all work is gathered on
OURS = "claude/"  # below it are the branches of the hall; everything else is the user's
KEPT = "refs/guildhall/kept/"  # where branches go that are done with: nothing is ever thrown away
LORE = ".lore"  # the folder of a project's artifacts
OF_THE_HALL = ("commissions", "meetings", "reviews")  # what it writes there itself, so that nobody else does


def is_of_the_hall(path: str) -> bool:
    """Whether it is the hall that writes there, and nobody else."""
    return any(path == place or path.startswith(f"{place}/") for place in (f"{LORE}/{name}" for name in OF_THE_HALL))


Scope = Literal["sparse", "full"]  # what a worktree has: the artifacts only, or everything


@dataclass(frozen=True, kw_only=True)
class ProjectSettings:
    """What config.yaml may say about a project beside where it is."""

    max_commissions: int = 3
    max_meetings: int = 5
    checks: tuple[str, ...] = ()  # commands that every commission's work has to pass
    remote: str = "origin"  # where pull requests go
    memory_tokens: int | None = None  # limit of the memory block; None: the limit of the settings


@dataclass(frozen=True, kw_only=True)
class Project:
    """A repository of the user's that is registered."""

    name: str
    path: Path  # the user's own folder; nobody works there but the user
    branch: str  # the user's, that the integration branch follows
    settings: ProjectSettings = field(default_factory=ProjectSettings)

    @property
    def ref(self) -> str:
        return f"refs/heads/{self.branch}"

    def as_dict(self) -> dict[str, Any]:
        """The project as `--json` prints it."""
        settings = {**asdict(self.settings), "checks": list(self.settings.checks)}
        return {"name": self.name, "path": str(self.path), "branch": self.branch, "settings": settings}


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Something that is wrong with a project. `blocks`: nothing can be done there before it is put right."""

    message: str
    hint: str | None = None
    blocks: bool = True


@dataclass(frozen=True, kw_only=True)
class ProjectShown:
    """A project in a listing. One that is written wrongly is listed too, with what is wrong."""

    name: str
    project: Project | None = None
    error: str | None = None
    living: tuple[str, ...] = ()  # its commissions and meetings that have not ended

    def as_dict(self) -> dict[str, Any]:
        told = {} if self.project is None else self.project.as_dict()
        return {"name": self.name, **told, "error": self.error, "living": list(self.living)}


@dataclass(frozen=True, kw_only=True)
class Moment:
    """An entry in the timeline of a commission or a meeting: a transition, or a note if `after` is None."""

    at: str
    reason: str  # for people; programs use `kind` and `data`
    kind: str = "note"
    before: str | None = None
    after: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Followed:
    """What following the user's branch came to."""

    commit: str
    how: Literal["nothing", "made", "forwarded", "merged"]


@dataclass(frozen=True, kw_only=True)
class Author:
    """Who a commit is by: the worker. The committer is always the hall."""

    name: str

    def line(self) -> tuple[str, str]:
        """Name and address as git takes them: it cannot have brackets, lines or nothing at all."""
        plain = "".join(one for one in self.name if one.isprintable() and one not in "<>").strip(" .,:;\"'\\")[:100]
        local = "".join(one if one.isascii() and (one.isalnum() or one in "-_.") else "-" for one in plain)
        return plain or "worker", f"{local or 'worker'}@guildhall.invalid"
