"""What the runs of a hall may do and reach. The defaults are production; the test runner passes others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from guildhall.core.config import Settings
    from guildhall.core.frame import Frame
    from guildhall.runs.lifecycle import RuntimeOf
    from guildhall.runs.outsiders import Outsiders
    from guildhall.runs.prepare import SourceOf
    from guildhall.tools.model import Tool
    from guildhall.workers.model import Worker
    from guildhall.workers.trust import Pin
    from guildhall.workflow.policy import WorkflowPolicy

T = TypeVar("T")


def _unchanged(value: T) -> T:
    return value


def _accept(worker: Worker, frame: Frame) -> None:
    """Accept every worker."""


@dataclass(frozen=True, kw_only=True)
class RunPolicy:
    """Replacements for what production does. `None` and the default functions change nothing."""

    runtime_of: RuntimeOf | None = None  # executes every run, whatever runtime its worker names
    source_of: SourceOf | None = None  # answers in place of every model
    pins: Mapping[Path, Pin] | None = None  # the trusted files, in place of those on record
    adjust_settings: Callable[[Settings], Settings] = _unchanged
    check_worker: Callable[[Worker, Frame], None] = _accept  # raises if runs must not use the worker
    check_servers: Callable[[Worker, Outsiders], None] | None = None  # raises if no server may be started or reached
    replace_tool: Callable[[Tool], Tool] = _unchanged  # the tool that a run gets in place of a declared one
    may_use_workflow_databases: bool = True  # else `context.config.db` of a workflow is ignored
    workflows: WorkflowPolicy | None = None  # None: production

    @property
    def runs_setup_commands(self) -> bool:
        """Return True if the setup commands of workflows are executed, which requires trust."""
        return self.workflows is None or self.workflows.commands is None
