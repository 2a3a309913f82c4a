"""Owner of runs: the operations that the hall calls on jobs, commissions and meetings for their runs.

Does not connect a single run to its owner: `runs.owner_hooks` does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from guildhall.core.errors import GuildError
    from guildhall.core.request_frame import Frame
    from guildhall.runs.execution.preparation import Grant, Prepared
    from guildhall.runs.model import Ask, Run


class RunOwner(Protocol):
    """The jobs, the commissions or the meetings of a hall."""

    async def prepare_resume(self, run_id: str, /, frame: Frame, grant: Grant | None = None) -> Prepared:
        """Prepare to resume a run with the hooks of its owner."""
        ...

    async def stop(self, run_id: str, /) -> list[str]:
        """End the job, commission or meeting of a run. Return the ids of the runs that this ended."""
        ...

    async def record_resume_failure(self, run: Run, error: GuildError) -> None:
        """Record that a run cannot be resumed automatically."""
        ...

    async def apply_answer(self, ask: Ask) -> None:
        """Apply the user's answer to an ask of the run or of a child run."""
        ...

    def start_resuming(self, resume: Callable[[Run], Awaitable[None]]) -> None:
        """From now on, resume waiting runs with `resume` when no open ask blocks them."""
        ...

    @property
    def has_pending_resume(self) -> bool:
        """Return True while a timer waits to resume a run."""
        ...

    def close(self) -> None:
        """Cancel all timers that resume runs."""
        ...
