"""Environment of a hall: home, variables, clock and settings, and the run policy of tests.

Does not start or close anything. Does not parse settings: `core.config` does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from guildhall.core.config import Settings, load_settings
from guildhall.core.ids import new_id
from guildhall.core.redaction import Secrets
from guildhall.core.request_frame import Frame
from guildhall.models.credentials import forwarded_variables
from guildhall.runs.model import HALL

if TYPE_CHECKING:
    from pathlib import Path

    from guildhall.core.clock import Clock
    from guildhall.core.paths import Home
    from guildhall.projects.registry import Projects
    from guildhall.runs.assembly.callees import MemberTools
    from guildhall.runs.assembly.preflight import SourceOf
    from guildhall.runs.execution.runs import RuntimeOf
    from guildhall.tools.model import Tool
    from guildhall.workers.model import Pin, Worker
    from guildhall.workflow.service import WorkflowPolicy


@dataclass(frozen=True)
class MemberFolder:
    """The folder of a member whose own hall this is. Code in it needs no trust."""

    root: Path
    user_home: Home | None  # its settings apply if the member has none


@dataclass(frozen=True, kw_only=True)
class Environment:
    """The values that every part of a hall shares."""

    home: Home
    environ: Mapping[str, str]
    clock: Clock
    readonly: bool
    is_persistent: bool  # runs continue when their streams are closed
    member: MemberFolder | None
    policy: RunPolicy
    boot: str = field(default_factory=lambda: new_id("b"))  # identifies this hall as the owner of the runs it executes

    @cached_property
    def projects(self) -> Projects:
        from guildhall.projects.registry import Projects

        return Projects(self.home)

    @cached_property
    def secrets(self) -> Secrets:
        """Return the secrets of the hall and of its callers, which must not be written to a repository."""
        return Secrets(self.environ)

    def settings(self, frame: Frame) -> Settings:
        """Return the settings that apply in the folder of a request."""
        if self.member is not None:
            user_home = self.member.user_home
            home = self.home if user_home is None or self.home.settings.exists() else user_home
            return load_settings(home, self.member.root)
        settings = load_settings(self.home, frame.root)
        project = self.projects.find_at(frame.root)
        limit_tokens = project.settings.memory_tokens if project is not None else None
        if limit_tokens is not None:
            memory = settings.memory.model_copy(update={"limit_tokens": limit_tokens})
            settings = settings.model_copy(update={"memory": memory})
        return self.policy.adjust_settings(settings)

    def frame_at(self, cwd: Path, root: Path) -> Frame:
        """Return the frame of work that the hall resumes by itself, with the variables of the hall's process."""
        allowed = frozenset(self.settings(Frame(cwd=cwd, root=root)).env)
        return replace(Frame.here(cwd, self.environ, allowed=allowed, keys=forwarded_variables()), root=root)

    def hall_frame(self, folder: Path) -> Frame:
        """Return the frame of work that the hall itself starts in a folder."""
        return replace(self.frame_at(folder, folder), caller=HALL)


T = TypeVar("T")


def peek(instance: object, attribute: cached_property[T]) -> T | None:
    """Return the value of a cached property, or None if it was not computed."""
    return vars(instance).get(attribute.attrname or "")


def _return_unchanged(value: T) -> T:
    return value


def _accept_worker(worker: Worker, frame: Frame) -> None:
    """Accept every worker."""


@dataclass(frozen=True, kw_only=True)
class RunPolicy:
    """Overrides for tests. The defaults are the behaviour of production."""

    runtime_of: RuntimeOf | None = None  # replaces the runtime of every worker
    source_of: SourceOf | None = None  # replaces every model
    pins: Mapping[Path, Pin] | None = None  # replaces the trusted files in the database
    adjust_settings: Callable[[Settings], Settings] = _return_unchanged
    check_worker: Callable[[Worker, Frame], None] = _accept_worker  # raises if runs must not use the worker
    check_servers: Callable[[Worker, MemberTools], None] | None = None  # raises if no server may be started or reached
    had_memory: Callable[[Worker], bool] = lambda worker: False  # True shows the tools that read memory entries
    replace_tool: Callable[[Tool], Tool] = _return_unchanged  # returns the tool that a run gets for a declared tool
    may_use_workflow_databases: bool = True  # False ignores `context.config.db`
    workflows: WorkflowPolicy | None = None

    @property
    def runs_setup_commands(self) -> bool:
        """Return True if the setup commands of workflows are executed, which requires trust."""
        return self.workflows is None or self.workflows.commands is None
