"""Members as data: the member with its folder and manifest, its address, its state and its running jobs.

Does not have I/O: `manifest.py` reads members, and `process.py` changes their state.
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
WORKER_CAPABILITY = "worker"  # the capability of a member that takes work
SECRET_VARIABLE = "GUILDHALL_MEMBER_SECRET"
_LONGEST_NAME = 400  # characters of a member's job, with the member's name

Scope = Literal["project", "home"]
# declared -> trusted -> starting -> ready -> exited -> backoff -> starting | broken ; stopped
State = Literal["declared", "trusted", "starting", "ready", "exited", "backoff", "broken", "stopped"]


@dataclass(frozen=True, kw_only=True)
class Member:
    """An entry of the roster. A member with an invalid manifest is an entry too, with its error."""

    name: str
    scope: Scope
    folder: Path  # its own root
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
    """The state of a member that the hall has started."""

    member: str
    state: State
    jobs: int  # that are running


@dataclass(frozen=True, kw_only=True)
class MemberDetails:
    """A member and its state."""

    member: Member
    state: State
    trusted: bool
    pid: int | None = None
    port: int | None = None
    note: str | None = None  # how it ended the last time, or why it is broken
    log: Path | None = None

    def as_dict(self) -> dict[str, Any]:
        told = {"state": self.state, "trusted": self.trusted, "pid": self.pid, "port": self.port, "note": self.note}
        return {**self.member.as_dict(), **told, "log": str(self.log) if self.log else None}


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """The address and the secret of a running member."""

    name: str
    url: str
    secret: str = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class ActiveJob:
    """A job of a member that is running."""

    member: str  # its name; with its place before it, if there are two of that name
    details: JobDetails
    project: str | None = None  # the folder in which the member is found; None if in any

    @property
    def id(self) -> str:
        return f"{self.member}/{self.details.job.id}"

    def as_dict(self) -> dict[str, Any]:
        return {**self.details.as_wire(), "member": self.member, "id": self.id, "project": self.project}


def parse_member_job(text: str) -> tuple[str, str] | None:
    """Return the member and the job that an id names, or None if it is an id of the hall's own."""
    member, slash, job = text.rpartition("/")
    if not slash:
        return None
    if not member or not job or len(text) > _LONGEST_NAME or not text.isprintable():
        raise NotFound("there is no such job", hint="A job of a member is MEMBER/JOB, as `guild dispatch` printed it.")
    return member, job
