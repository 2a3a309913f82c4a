"""How the workflows of a hall are executed. The defaults are production; the test runner passes others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from guildhall.workflow.team import DEBOUNCE
from guildhall.workflow.turn import FIRST_PAUSE

if TYPE_CHECKING:
    from collections.abc import Callable

    from guildhall.tools.model import Execute
    from guildhall.workflow.ordering import RecordedOrder


@dataclass(frozen=True, kw_only=True)
class WorkflowPolicy:
    """The timing and order of agents, and what executes setup commands."""

    first_pause: float = FIRST_PAUSE  # seconds before a disturbed agent is retried; doubled each time
    debounce: float = DEBOUNCE  # seconds without activity before a team counts as quiet
    order: RecordedOrder | None = None  # makes agents move in the order of a recording
    commands: Callable[..., Execute] | None = None  # replaces `Commands`, with the same arguments; None: run them
