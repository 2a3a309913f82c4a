"""Member model: defines a member, its state, its endpoint and its running jobs.

Does no I/O: `members.registry` reads members, and `members.process` changes their state.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from guildhall.core.errors import NotFound
from guildhall.core.paths import MEMBERS

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.jobs.model import JobDetails
    from guildhall.members.manifest import Manifest

FOLDER = MEMBERS
MANIFEST = "guild-member.json"
BUSY_FILE = "members-at-work.json"  # in the home; lists the members with running jobs
QUESTIONS_FILE = "member-questions.json"  # in the home; lists the ended jobs of members with open questions
WORKER_CAPABILITY = "worker"  # declared by members that accept jobs
SECRET_VARIABLE = "GUILDHALL_MEMBER_SECRET"
_MAX_ID_CHARS = 400  # of an id MEMBER/JOB

Scope = Literal["project", "home"]
# declared -> trusted -> starting -> ready -> exited -> backoff -> starting or broken. `stopped` can follow any state.
State = Literal["declared", "trusted", "starting", "ready", "exited", "backoff", "broken", "stopped"]


@dataclass(frozen=True, kw_only=True)
class Member:
    """A member with a manifest, or with an error if its manifest is invalid."""

    name: str
    scope: Scope
    folder: Path
    manifest: Manifest | None = None
    error: str | None = None

    @property
    def path(self) -> Path:
        return self.folder / MANIFEST

    @property
    def qualified_name(self) -> str:
        return f"{self.scope}/{self.name}"

    @property
    def display_name(self) -> str:
        return (self.manifest.display_name if self.manifest else None) or self.name

    @property
    def description(self) -> str | None:
        return self.manifest.description if self.manifest else None

    @property
    def capabilities(self) -> tuple[str, ...]:
        return self.manifest.capabilities if self.manifest else ()

    @property
    def accepts_jobs(self) -> bool:
        return WORKER_CAPABILITY in self.capabilities

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "displayName": self.display_name,
            "description": self.description,
            "version": self.manifest.version if self.manifest else None,
            "scope": self.scope,
            "folder": str(self.folder),
            "capabilities": list(self.capabilities),
            "error": self.error,
        }


class MemberStatus(TypedDict):
    """The state of a started member, and the number of its running jobs."""

    member: str
    state: State
    jobs: int


@dataclass(frozen=True, kw_only=True)
class MemberDetails:
    """A member and its state."""

    member: Member
    state: State
    trusted: bool
    pid: int | None = None
    port: int | None = None
    note: str | None = None  # the reason of the last exit
    log: Path | None = None

    def as_dict(self) -> dict[str, Any]:
        fields = {name: getattr(self, name) for name in ("state", "trusted", "pid", "port", "note")}
        return {**self.member.as_dict(), **fields, "log": str(self.log) if self.log else None}


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """The address and the secret of a running member."""

    name: str
    url: str
    secret: str = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class ActiveJob:
    """A job of a member that is running, or that has ended with open questions."""

    member: str  # the shortest name that finds the member
    details: JobDetails
    project: str | None = None  # the only project in which the member is found

    @property
    def id(self) -> str:
        return f"{self.member}/{self.details.job.id}"

    def as_dict(self) -> dict[str, Any]:
        return {**self.details.as_wire(), "member": self.member, "id": self.id, "project": self.project}


def parse_member_job(text: str) -> tuple[str, str] | None:
    """Return the member and the job of an id MEMBER/JOB, or None for the id of a job of the hall."""
    member, slash, job = text.rpartition("/")
    if not slash:
        return None
    if not member or not job or len(text) > _MAX_ID_CHARS or not text.isprintable():
        raise NotFound(
            f"unknown job {text[:100]!r}", hint="The id of a member's job is MEMBER/JOB, as `guild dispatch` prints it."
        )
    return member, job
