"""Worker types: define a worker with its origin, folders and rules, its lock, its trusted files, and its package.

Does not read files (see `workers.loader`). Does not import pydantic, because commands import this module.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from guildhall.core.errors import InvalidFile, ToolUnavailable
from guildhall.core.paths import MEMBERS, PROJECT_SETTINGS
from guildhall.core.text import did_you_mean
from guildhall.policy.rules import ALIASES, CAPABILITIES, Rule
from guildhall.sandbox.view import Folder

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from guildhall.core.frame import Frame
    from guildhall.workers.definition import Definition, Sandbox, Status

Scope = Literal["project", "home", "package", "shipped", "given", "workflow"]
TrustState = Literal["trusted", "new", "changed", "gone"]
PackageKind = Literal["worker", "toolbox", "both"]

WORKERS = "workers"
GENERATED = "generated"  # below workers/: what workers wrote
# What decides what the runs of a project may do: read by all, changed by none of them.
PERMISSION_PATHS = (WORKERS, "prompts", "toolboxes", MEMBERS, PROJECT_SETTINGS)

ROOM_TOOLS = (  # in the order in which a model sees them
    "channel_send",
    "channel_read",
    "inbox_read",
    "inbox_ack",
    "status_set",
    "team_list",
    "document_read",
    "document_write",
    "document_append",
    "document_list",
    "document_create",
    "document_suggest",
    "proposal_create",
    "proposal_vote",
    "proposal_status",
    "proposal_cancel",
    "resource_create",
    "resource_read",
    "no_action",
)
# Tools that a rule may name although no toolbox of the worker's brings them.
BUILT_IN_TOOLS = ("Read", "Grep", "Glob", "Write", "Edit", "Bash", "WebFetch", "WebSearch")
SYSTEM_TOOLS = (
    "sandbox_list",
    "sandbox_read_text",
    "sandbox_write_text",
    "worker_call",
    "worker_create",
    "memory_read",
    "memory_write",
    "memory_list",
    "artifact_read",
    "artifact_write",
    "artifact_list",
    "record_decision",
    "update_summary",
    "log_question",
    "store_memory",
    "write_artifact",
    "submit_result",
    "report_progress",
    "submit_review",
    *ROOM_TOOLS,
)


_STANDING_TEXTS: Mapping[TrustState, str] = {
    "trusted": "trusted",
    "new": "not trusted yet",
    "changed": "changed since you trusted it",
    "gone": "gone since you trusted it",
}


@dataclass(frozen=True, kw_only=True)
class Lock:
    """A pin of a worker's text at the time of the lock."""

    path: Path
    digest: str
    locked_at: str
    is_requested: bool = False  # by `locked: true` in the file


@dataclass(frozen=True, kw_only=True)
class Worker:
    """A definition with its origin."""

    definition: Definition
    instructions: str  # as resolved: inline, from a file, or rendered
    scope: Scope
    digest: str  # of the file's text, and of its instructions where these are in a file of their own
    path: Path | None = None  # None: built in Python; of an agent that a workflow's file defines: that file
    lock: Lock | None = None
    workdir: Path | None = None  # of an agent: where it works and may write; None: as its file alone says
    workflow_paths: tuple[Path, ...] = ()  # of an agent: what its workflow has on disk, and it does not change
    activate: str | None = None  # of a package: `module:function`, which says how its runs begin

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def description(self) -> str | None:
        return self.definition.description

    @property
    def status(self) -> Status:
        return self.definition.status

    @property
    def is_locked(self) -> bool:
        return self.lock is not None or self.definition.locked

    @property
    def is_changed(self) -> bool:
        """Return True if the worker is locked and its text differs from the pin."""
        return self.lock is not None and self.lock.digest != self.digest

    @property
    def place(self) -> str:
        """Return the file of the worker, or its name, for errors."""
        return str(self.path) if self.path else f"the worker {self.name!r}"

    @property
    def identity(self) -> str:
        """Return the identity of the worker, which does not depend on its text."""
        origin = f"{self.scope}:{self.path or self.name}"
        return f"{origin}#{self.name}" if self.scope == "workflow" else origin

    @property
    def rules(self) -> tuple[Rule, ...]:
        """Return the rules for the policy, with aliases resolved."""
        rules = self.definition.tool_rules.items()
        fields = {"allowed", "approval_required", "timeout"}
        return tuple(Rule(name=ALIASES.get(name, name), **rule.model_dump(include=fields)) for name, rule in rules)

    def rules_for(self, tools: Iterable[str]) -> tuple[Rule, ...]:
        """Return the rules. Raise InvalidFile for a rule that names no tool of the run: it would protect nothing."""
        known = {*rule_names(), *tools}
        for rule in self.rules:
            if rule.name not in known:
                message = f"tool_rules.{rule.name}: there is no such capability or tool"
                raise InvalidFile(message, where=self.place, hint=did_you_mean(rule.name, known))
        return self.rules

    def project_root(self, frame: Frame) -> Path:
        """Return the folder of its sandboxes: its project, or the caller's if it has none."""
        return project_folder(self.path) if self.path and self.scope == "project" else frame.root

    def project_frame(self, frame: Frame) -> Frame:
        """Return the frame in which it finds other workers: that of its own project."""
        return replace(frame, root=self.project_root(frame))

    def resource_folder(self, frame: Frame) -> Path:
        """Return the folder of its prompts, schemas and scripts."""
        return project_folder(self.path) if self.path else frame.root

    def protected_paths(self, frame: Frame) -> tuple[Path, ...]:
        """Return the paths that define permissions, such as worker files and settings. Runs must not write them."""
        projects = dict.fromkeys((frame.root, self.project_root(frame), self.resource_folder(frame)))
        found = [project / name for project in projects for name in PERMISSION_PATHS]
        # Its own file beside no `workers/`; one in there is kept with that folder, unless the folder is a sandbox.
        loose = self.path is not None and not any(one in self.path.parents for one in found)
        return (*found, self.path, *self.workflow_paths) if self.path and loose else (*found, *self.workflow_paths)

    def sandbox_folders(self, frame: Frame) -> tuple[Folder, ...]:
        """Return its sandboxes. A read-only folder must exist; a writable folder may be created by the run."""
        return tuple(self._folder(name, sandbox, frame) for name, sandbox in self.definition.sandboxes.items())

    def _folder(self, name: str, sandbox: Sandbox, frame: Frame) -> Folder:
        field = f"sandboxes.{name}.path"
        try:
            path = self._seen(
                (self.project_root(frame) / Path(sandbox.path).expanduser()).resolve(), sandbox, frame, field
            )
            exists, is_folder = path.exists(), path.is_dir()
        except (OSError, RuntimeError) as error:  # a loop of links, a name too long, ~nobody
            raise ToolUnavailable(f"{field}: {sandbox.path} cannot be used: {error}", where=self.place) from None
        if exists and not is_folder:
            raise ToolUnavailable(f"{field}: {path} is not a folder", where=self.place)
        if not exists and sandbox.mode == "ro":
            raise ToolUnavailable(
                f"{field}: the folder {path} does not exist",
                where=self.place,
                hint="Make it, correct the path, or use `mode: rw` for a folder that the run may make."
                if frame.worktree is None
                else "The worktree does not have it: `checkout: full` gives the worker all of the project.",
            )
        return Folder(
            path=path,
            name=name,
            writable=sandbox.mode == "rw",
            allowed_suffixes=sandbox.allowed_suffixes,
            text_suffixes=sandbox.text_suffixes,
            attachment_suffixes=sandbox.attachment_suffixes,
            max_bytes=sandbox.max_bytes,
        )

    def _seen(self, path: Path, sandbox: Sandbox, frame: Frame, field: str) -> Path:
        """Return the path of a sandbox, moved from the project to the worktree if the frame has one."""
        if frame.worktree is None:
            return path
        root, worktree = frame.root.resolve(), frame.worktree.resolve()
        if path.is_relative_to(root):
            path = (worktree / path.relative_to(root)).resolve()
            if path.is_relative_to(worktree):
                return path
            message = f"{field}: {sandbox.path} leads out of the worktree by a link"
            raise ToolUnavailable(message, where=self.place, hint="Name a folder of the project itself.")
        if sandbox.mode == "rw":
            message = f"{field}: {path} lies outside the project, and there nothing is written in a worktree"
            raise ToolUnavailable(message, where=self.place, hint="Use `mode: ro`, or a folder of the project.")
        return path

    def as_dict(self) -> dict[str, Any]:
        """Return the worker for `--json` and the record."""
        return {
            **self.definition.model_dump(mode="json"),
            "instructions": self.instructions,
            "scope": self.scope,
            "path": str(self.path) if self.path else None,
            "digest": self.digest,
            "locked": self.is_locked,
            **({"activate": self.activate} if self.activate else {}),
        }


@dataclass(frozen=True, kw_only=True)
class WorkerListing:
    """A worker in a listing. An invalid file is listed too, with its error."""

    name: str
    scope: Scope
    path: Path
    status: Status | None = None
    locked: bool = False
    description: str | None = None
    error: str | None = None

    def as_dict(self) -> dict[str, Any]:
        return {**vars(self), "path": str(self.path)}


@dataclass(frozen=True, kw_only=True)
class Pin:
    """A file that the user trusts, with the digest that it had then."""

    path: Path
    digest: str
    trusted_at: str


@dataclass(frozen=True, kw_only=True)
class FileTrust:
    """A file of some code and its trust, with its current size and digest."""

    path: Path
    display_path: str
    size: int
    digest: str
    state: TrustState
    trusted_at: str | None = None

    @property
    def state_text(self) -> str:
        return _STANDING_TEXTS[self.state]

    def as_dict(self) -> dict[str, Any]:
        return {
            "path": str(self.path),
            "file": self.display_path,
            "size": self.size,
            "sha256": self.digest,
            "standing": self.state,
            "trusted_at": self.trusted_at,
        }


@dataclass(frozen=True, kw_only=True)
class PackageListing:
    """A package in a listing. An invalid package is listed too, with its error."""

    name: str
    path: Path  # its folder
    types: tuple[str, ...] = ()
    description: str | None = None
    version: str | None = None
    error: str | None = None

    def as_dict(self) -> dict[str, Any]:
        return {**vars(self), "path": str(self.path), "types": list(self.types)}


@dataclass(frozen=True, kw_only=True)
class PackageFile:
    """A file of a package."""

    path: str  # from the package
    size: int
    runs: bool = False  # it is code that may be executed


@dataclass(frozen=True, kw_only=True)
class PackageTool:
    """A tool that a package exports."""

    name: str
    description: str
    capabilities: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PackageDetails:
    """A package with everything that it contains."""

    package: PackageListing
    files: tuple[PackageFile, ...]
    digest: str  # of all files
    posture: str | None = None  # of a worker
    rights: Mapping[str, Any] | None = None  # of a worker: the fields of its definition that are not defaults
    activate: str | None = None
    export: str | None = None
    tools: tuple[PackageTool, ...] = ()  # of a toolbox
    problems: tuple[str, ...] = ()  # why its worker or its tools cannot be used here

    def as_dict(self) -> dict[str, Any]:
        return {
            **self.package.as_dict(),
            "posture": self.posture,
            "rights": dict(self.rights) if self.rights is not None else None,
            "activate": self.activate,
            "export": self.export,
            "tools": [{**vars(tool), "capabilities": list(tool.capabilities)} for tool in self.tools],
            "files": [vars(file) for file in self.files],
            "digest": self.digest,
            "problems": list(self.problems),
        }


@dataclass(frozen=True, kw_only=True)
class AddedPackage:
    """A package that was added to the home."""

    name: str
    path: Path
    backup: Path | None = None  # the files of the package that it replaced


def project_folder(path: Path) -> Path:
    """Return the folder that holds the `workers/` of a file, else the file's own folder."""
    folder = path.parent
    if folder.name == GENERATED and folder.parent.name == WORKERS:
        folder = folder.parent
    return folder.parent if folder.name == WORKERS else folder


def rule_names() -> frozenset[str]:
    """Return the names that a rule of any worker may have."""
    return frozenset({*CAPABILITIES, *ALIASES, *BUILT_IN_TOOLS, *SYSTEM_TOOLS})
