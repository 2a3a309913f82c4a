"""Worker types: a worker, its lock, the trust in its files, and the listings of workers and packages.

Worker files are read by `workers.loader`. This module does not import pydantic, because commands import it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from guildhall.core import yaml
from guildhall.core.errors import InvalidFile, ToolUnavailable
from guildhall.core.paths import MEMBERS, PROJECT_SETTINGS
from guildhall.core.text_checks import did_you_mean
from guildhall.policy.rules import ALIASES, CAPABILITIES, Rule
from guildhall.sandbox.view import Folder

if TYPE_CHECKING:
    from guildhall.core.request_frame import Frame
    from guildhall.workers.definition import Definition, Sandbox, Status

Scope = Literal["project", "home", "package", "shipped", "workflow"]
TrustState = Literal["trusted", "new", "changed", "gone"]
PackageKind = Literal["worker", "toolbox", "both"]

WORKERS = "workers"
GENERATED = "generated"  # below workers/: files that workers wrote
# Paths of a project that define permissions. Runs can read them, but not write them.
PERMISSION_PATHS = (WORKERS, "prompts", "toolboxes", MEMBERS, PROJECT_SETTINGS)

ROOM_TOOLS = (  # in the order of the prompt
    "channel_send",
    "no_action",
    "channel_read",
    "more_tools",
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
)
# A rule can name these tools even if the worker does not have them.
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
_TRUST_TEXTS: Mapping[TrustState, str] = {
    "trusted": "trusted",
    "new": "not trusted yet",
    "changed": "changed since you trusted it",
    "gone": "deleted since you trusted it",
}


@dataclass(frozen=True, kw_only=True)
class Lock:
    """The digest that the text of a locked worker must have."""

    path: Path
    digest: str
    locked_at: str
    is_requested: bool = False  # the file has `locked: true`


@dataclass(frozen=True, kw_only=True)
class Worker:
    """A definition with its instructions and its origin."""

    definition: Definition
    instructions: str  # inline, or the rendered prompt file
    scope: Scope
    digest: str  # digest of the worker file and the prompt file
    path: Path  # the worker file, the workflow file or the pyproject.toml of a package
    lock: Lock | None = None
    workdir: Path | None = None  # folder that an agent can write besides its sandboxes
    workflow_paths: tuple[Path, ...] = ()  # files of the workflow, which an agent must not change
    activate: str | None = None  # `module:function` of a package that returns the prompt of a run
    rule_files: Mapping[str, str] = field(default_factory=dict[str, str])  # the source of rules from elsewhere, by name

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
        """Return True if the worker is locked and its digest differs from that of the lock."""
        return self.lock is not None and self.lock.digest != self.digest

    @property
    def place(self) -> str:
        """Return the path of the worker for error messages."""
        return str(self.path)

    @property
    def identity(self) -> str:
        """Return an id of the worker that does not depend on the text of its file."""
        origin = f"{self.scope}:{self.path}"
        return f"{origin}#{self.name}" if self.scope == "workflow" else origin

    @property
    def rules(self) -> tuple[Rule, ...]:
        """Return the rules of the worker file with aliases resolved."""
        rules = self.definition.tool_rules.items()
        fields = {"allowed", "approval_required", "timeout", "description"}
        own = f"the package {self.name}" if self.scope == "package" else self.place
        return tuple(
            Rule(
                name=ALIASES.get(name, name),
                origin=f"the rule {name!r} of {self.rule_files.get(name, own)}",
                **rule.model_dump(include=fields),
            )
            for name, rule in rules
        )

    def rules_for(self, tools: Iterable[str]) -> tuple[Rule, ...]:
        """Return the rules. Raise InvalidFile for a rule that matches no tool of the run and would have no effect."""
        for error in self.unknown_rules(tools):
            raise error
        return self.rules

    def unknown_rules(self, tools: Iterable[str]) -> list[InvalidFile]:
        """Return an error for each rule that names no capability and no tool. `docs_*` stands for all tools of docs."""
        known = {*rule_names(), *tools}
        prefixes = tuple(name.removesuffix("*") for name in known if name.endswith("*"))
        return [
            self.field_error("unknown capability or tool", ("tool_rules", name), did_you_mean(name, known))
            for name in self.definition.tool_rules
            if ALIASES.get(name, name) not in known and not name.startswith(prefixes)
        ]

    def field_error(self, message: str, location: yaml.Location, hint: str | None = None) -> InvalidFile:
        """Return an error about a field of the worker file, with its line if the file can be read."""
        agent = ("agents", self.name) if self.scope == "workflow" else ()
        try:
            return yaml.read(self.path).error(message, (*agent, *location), hint)
        except InvalidFile:  # a package, or the file was changed after the start of the run
            return yaml.Source(self.path, "", None, {}).error(message, location, hint)

    def project_root(self, frame: Frame) -> Path:
        """Return the folder that sandbox paths are relative to: the project of the worker, or that of the caller."""
        return self.resource_folder if self.scope == "project" else frame.root

    def project_frame(self, frame: Frame) -> Frame:
        """Return the frame with the project in which the worker finds other workers."""
        return replace(frame, root=self.project_root(frame))

    @property
    def resource_folder(self) -> Path:
        """Return the folder of the worker's prompts, schemas and scripts."""
        return project_folder(self.path)

    def protected_paths(self, frame: Frame) -> tuple[Path, ...]:
        """Return the paths that define permissions, such as worker files and settings. Runs cannot write them."""
        projects = dict.fromkeys((frame.root, self.project_root(frame), self.resource_folder))
        found = [project / name for project in projects for name in PERMISSION_PATHS]
        if not any(path in self.path.parents for path in found):
            found.append(self.path)  # the worker file is not in `workers/`
        return (*found, *self.workflow_paths)

    def sandbox_folders(self, frame: Frame) -> tuple[Folder, ...]:
        """Return the sandboxes. Raise ToolUnavailable for a folder that a run cannot use."""
        return tuple(self._sandbox_folder(name, sandbox, frame) for name, sandbox in self.definition.sandboxes.items())

    def _sandbox_folder(self, name: str, sandbox: Sandbox, frame: Frame) -> Folder:
        field = f"sandboxes.{name}.path"
        try:
            path = (self.project_root(frame) / Path(sandbox.path).expanduser()).resolve()
            path = self._move_to_worktree(path, sandbox, frame, field)
            exists, is_folder = path.exists(), path.is_dir()
        except (OSError, RuntimeError) as error:  # a loop of links, a name too long, ~unknown_user
            raise ToolUnavailable(f"{field}: cannot use {sandbox.path}: {error}", where=self.place) from None
        if exists and not is_folder:
            raise ToolUnavailable(f"{field}: {path} is not a folder", where=self.place)
        if not exists and sandbox.mode == "ro":
            hint = "Create it, correct the path, or use `mode: rw` for a folder that the run can create."
            if frame.worktree is not None:
                hint = "Set `checkout: full` in the worker file: the worktree contains only a part of the project."
            raise ToolUnavailable(f"{field}: the folder {path} does not exist", where=self.place, hint=hint)
        return Folder(
            path=path,
            name=name,
            is_writable=sandbox.mode == "rw",
            allowed_suffixes=sandbox.allowed_suffixes,
            text_suffixes=sandbox.text_suffixes,
            attachment_suffixes=sandbox.attachment_suffixes,
            max_bytes=sandbox.max_bytes,
        )

    def _move_to_worktree(self, path: Path, sandbox: Sandbox, frame: Frame, field: str) -> Path:
        """Return the path in the worktree of the frame, or the path itself if the frame has no worktree."""
        if frame.worktree is None:
            return path
        root, worktree = frame.root.resolve(), frame.worktree.resolve()
        if path.is_relative_to(root):
            path = (worktree / path.relative_to(root)).resolve()
            if path.is_relative_to(worktree):
                return path
            message = f"{field}: {sandbox.path} is a link to a folder outside of the worktree"
            raise ToolUnavailable(message, where=self.place, hint="Use a folder of the project.")
        if sandbox.mode == "rw":
            message = f"{field}: {path} is outside of the project, where a run in a worktree cannot write"
            raise ToolUnavailable(message, where=self.place, hint="Use `mode: ro`, or a folder of the project.")
        return path

    def as_dict(self) -> dict[str, Any]:
        """Return the worker for `--json` and the journal."""
        return {
            **self.definition.model_dump(mode="json"),
            "instructions": self.instructions,
            "scope": self.scope,
            "path": str(self.path),
            "digest": self.digest,
            "locked": self.is_locked,
            **({"activate": self.activate} if self.activate else {}),
        }


@dataclass(frozen=True, kw_only=True)
class WorkerListing:
    """A worker in a listing. An invalid file is listed with its error."""

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
    """A file that the user trusts, with the trusted digest."""

    path: Path
    digest: str
    trusted_at: str


@dataclass(frozen=True, kw_only=True)
class FileTrust:
    """The trust in a file, with its current size and digest."""

    path: Path
    display_path: str
    size: int
    digest: str
    state: TrustState
    trusted_at: str | None = None

    @property
    def state_text(self) -> str:
        return _TRUST_TEXTS[self.state]

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
    """A package in a listing. An invalid package is listed with its error."""

    name: str
    path: Path  # path of the folder
    types: tuple[str, ...] = ()
    description: str | None = None
    version: str | None = None
    error: str | None = None

    def as_dict(self) -> dict[str, Any]:
        return {**vars(self), "path": str(self.path), "types": list(self.types)}


@dataclass(frozen=True, kw_only=True)
class PackageFile:
    """A file of a package."""

    path: str  # relative to the package
    size: int
    runs: bool = False  # True if the file is code that a run can execute


@dataclass(frozen=True, kw_only=True)
class PackageTool:
    """A tool that a package exports."""

    name: str
    description: str
    capabilities: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PackageDetails:
    """A package with its files, its worker and its tools."""

    package: PackageListing
    files: tuple[PackageFile, ...]
    digest: str  # digest of all files
    posture: str | None = None  # instructions of the worker
    rights: Mapping[str, Any] | None = None  # fields of the worker that differ from the defaults
    activate: str | None = None
    export: str | None = None
    tools: tuple[PackageTool, ...] = ()
    problems: tuple[str, ...] = ()  # errors of the worker and of the tools

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
    backup: Path | None = None  # folder with the replaced package


def project_folder(path: Path) -> Path:
    """Return the folder with the `workers/` folder of a file, or the folder of the file without one."""
    folder = path.parent
    if folder.name == GENERATED and folder.parent.name == WORKERS:
        folder = folder.parent
    return folder.parent if folder.name == WORKERS else folder


def rule_names() -> frozenset[str]:
    """Return the names that are valid for a rule of any worker."""
    return frozenset({*CAPABILITIES, *ALIASES, *BUILT_IN_TOOLS, *SYSTEM_TOOLS})
