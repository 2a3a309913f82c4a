"""Cancelling: whatever has not ended -> cancelled. What the worker has done so far stays, on its branch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.errors import UsageError
from guildhall.projects.commissions import records
from guildhall.projects.commissions.finalise import concluded, keep_if_possible, tidy
from guildhall.runs.model import ENDED, SHUTDOWN, is_text
from guildhall.runs.records import cancel_tree, find_run

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from guildhall.projects.commissions.ground import Ground
    from guildhall.projects.commissions.model import Commission

LONGEST_REASON = 2_000


def checked_reason(reason: str) -> str:
    """The reason, if it is one."""
    if is_text(reason) and not reason.strip():
        raise UsageError("reason: it is empty", hint="Say why, or leave it out.")
    if not is_text(reason) or len(reason) > LONGEST_REASON:
        raise UsageError(f"reason: expected text of at most {LONGEST_REASON:,} characters")
    return reason.strip()


async def cancel(ground: Ground, id: str, reason: str = "by the user") -> Commission:
    """Ends it. One that has submitted its result, and needs no review, is completed: that came first."""
    reason = ground.redact(checked_reason(reason))
    async with ground.steering[id]:
        if (commission := await halted(ground, id)) is None:
            return ground.get(id)
        await ground.store.write(lambda connection: end(connection, commission, reason, ground.now()))
        await tidy(ground, id)
        return ground.get(id)


async def halted(ground: Ground, id: str) -> Commission | None:
    """One that can be cancelled, with its run stopped and its work kept; None: it has ended meanwhile.

    Whoever dies now has cancelled nothing: it goes on.
    """
    commission = ground.get(id)
    if commission.status != "in_progress":
        commission.may_become("cancelled")
    elif commission.run is not None:
        await ground.runs().park(commission.run, SHUTDOWN)
        commission = ground.get(id)
        if commission.status != "in_progress" or await concluded(ground, commission):
            return None
        await keep_if_possible(ground, commission)
    return commission


def end(connection: Connection, commission: Commission, reason: str, now: str) -> None:
    """Row and run, in one transaction."""
    records.move(connection, commission.id, "cancelled", reason, now)
    found = find_run(connection, commission.run) if commission.run is not None else None
    if found is not None and found.status not in ENDED:
        cancel_tree(connection, found.id, now)
