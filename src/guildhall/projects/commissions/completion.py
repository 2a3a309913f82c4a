"""Completion: judges the end of a commission's run, merges the work, and asks the user about merge conflicts.

The steps are: commit the work on its branch, check the contract, get the review, squash the work into the
integration branch as one commit, write the final artifact, record the end of the run and of the commission in one
transaction, remove the checkout. After a conflict, branch and checkout remain until the user decides.
Does not check the contract (`contract.py`) and does not detect conflicts (`git/integration_branch.py`).

Invariant: each step is idempotent, so that it can be repeated after a crash.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING

from guildhall.activities.contract import rejection_reason
from guildhall.core.errors import ErrorInfo, GuildError, MergeConflict, NotFound, NotFulfilled, RuntimeFailed
from guildhall.core.ids import ASK, fingerprint, new_id
from guildhall.projects.commissions import records
from guildhall.projects.commissions.artifact import completed_artifact, write_artifact
from guildhall.projects.commissions.contract import check_contract, commit_if_possible, commit_work, require_approval
from guildhall.projects.model import INTEGRATION
from guildhall.runs.model import ENDED as RUN_ENDED
from guildhall.runs.model import Ask, Question, SegmentEnd
from guildhall.runs.purpose import CommissionPurpose
from guildhall.runs.record import records as run_records

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from guildhall.projects.commissions.context import CommissionContext
    from guildhall.projects.commissions.model import Commission
    from guildhall.projects.git.snapshot import UncommittedFiles

_log = logging.getLogger("guildhall.commissions")


async def judge(context: CommissionContext, id: str, run: str, ending: SegmentEnd) -> SegmentEnd:
    """Check the end of a segment against the contract, merge fulfilled work, and return the end to record.

    A submitted result counts even if the run failed afterwards. If something outside of the work prevents the merge,
    the run is paused and the commission is put on hold.
    """
    commission = context.get(id)
    if commission.run != run or commission.status != "in_progress" or ending.status not in ("completed", "failed"):
        return ending
    try:
        return await _judge(context, commission, run, ending)
    except (NotFulfilled, MergeConflict) as error:
        return SegmentEnd(status="failed", reason=error.code, error=error.as_dict(), output=ending.output)
    except Exception as error:  # noqa: BLE001 - such as a full disk, a branch in use, an invalid config.yaml
        if not isinstance(error, GuildError):
            _log.exception("cannot merge %s", id)
        cause = error if isinstance(error, GuildError) else RuntimeFailed(f"{type(error).__name__}: {error}")
        await context.hold(id, "cannot_merge", cause)
        return SegmentEnd.paused("user")


async def _judge(context: CommissionContext, commission: Commission, run: str, ending: SegmentEnd) -> SegmentEnd:
    if not commission.is_submitted:
        await commit_if_possible(context, commission)
        if ending.status == "failed":
            return ending
        rejection = rejection_reason(context.history.entries(run))
        raise NotFulfilled(
            f"the run ended without {f'an accepted result: {rejection}' if rejection else 'submitting a result'}",
            hint=f"The work is on the branch {commission.branch}. Try again: guild retry {commission.id}",
        )
    work = await commit_work(context, commission)
    if commission.submitted_commit is None or commission.submitted_commit != work.tip:  # changed since
        contract = context.history.purpose(run, CommissionPurpose).contract
        assert contract is not None
        await check_contract(context, commission, contract, commission.result, work)
    if (waiting := await require_approval(context, commission, run, work.tip)) is not None:
        return waiting
    diffstat = await asyncio.to_thread(context.branches_of(commission).diffstat, str(commission.branch))
    id, now = commission.id, context.now()
    commission = await context.store.write(
        lambda connection: records.update_fields(connection, id, now, diffstat=diffstat)
    )
    await asyncio.to_thread(_merge, context, commission)
    reason = None
    if ending.error:
        reason = f"the run failed after the result was submitted: {ending.error['message']}"
    return SegmentEnd(status="completed", reason=reason, output=commission.result)


def _merge(context: CommissionContext, commission: Commission) -> None:
    """Squash the work into the integration branch, and write the final artifact."""
    title = context.redact(commission.title)
    message = f"{title}\n\nCommission {commission.id}, attempt {commission.attempt}, {commission.worker}.\n"
    artifact = completed_artifact(context, commission, _describe_merge(commission))
    context.workspace(commission).merge(message, {commission.path: artifact})


def _describe_merge(commission: Commission) -> str:
    return f"merged into {INTEGRATION}: {stat}" if (stat := commission.diffstat) and stat.files else str(stat)


def record_end(context: CommissionContext, id: str, connection: Connection, run: str, ending: SegmentEnd) -> None:
    """Apply `complete` or `fail`, in the transaction that ends the run."""
    commission = records.find(connection, id)
    if commission is None or commission.run != run or commission.status != "in_progress":
        return
    now = context.now()
    if ending.status == "completed":
        reason = "; ".join(filter(None, (_describe_merge(commission), ending.reason)))
        records.record_event(connection, id, "complete", reason, now)
    elif ending.status == "failed":
        error = ending.error or ErrorInfo(code="error", message=ending.reason or "unknown reason")
        reason, conflict = error["message"], tuple(error.get("files", ()))
        data = {"error": dict(error)}
        failed = records.record_event(connection, id, "fail", reason, now, data=data, conflict=conflict)
        if conflict:
            _ask_about_conflict(connection, failed, now)


async def finish(context: CommissionContext, commission: Commission, ending: SegmentEnd) -> None:
    """End a commission whose run has stopped, as if the run had ended with `ending`."""
    run_id = str(commission.run)
    judged = await judge(context, commission.id, run_id, ending)
    if judged.status not in RUN_ENDED:  # on hold
        return

    def write(connection: Connection) -> None:
        run = run_records.find_run(connection, run_id)
        if run is not None and run.status not in RUN_ENDED:
            if judged.status == "completed":
                run_records.complete_run(connection, run_id, judged.output, context.now())
            else:
                error = judged.error or ErrorInfo(code="error", message=judged.reason or "unknown reason")
                run_records.fail_run(connection, run_id, error, context.now())
        record_end(context, commission.id, connection, run_id, judged)

    await context.store.write(write)
    await clean_up(context, commission.id)
    await request_conflict_meeting(context, commission.id)


async def request_conflict_meeting(context: CommissionContext, id: str) -> None:
    """Request a meeting about an unresolved conflict. An error is logged, because the inbox has an ask too."""
    commission = context.get(id)
    if commission.conflict:
        try:
            await context.request_meeting(commission)
        except GuildError as error:
            _log.warning("%s: the meeting could not be requested: %s", id, error)


async def clean_up(context: CommissionContext, id: str) -> None:
    """Remove the checkout and write the artifact of an ended commission. The next start repeats failed steps."""
    commission = context.get(id)
    if not commission.conflict:  # else the user may want to inspect the checkout
        await remove_checkout(context, commission)
    if commission.status != "completed":  # else the merge commit contains the artifact
        await write_artifact(context, id)


async def remove_checkout(context: CommissionContext, commission: Commission) -> None:
    """Remove the checkout of an attempt, after committing its content. Archive a merged branch."""
    if commission.branch is None:
        return

    def remove() -> UncommittedFiles | None:
        return context.workspace(commission).remove(is_merged=commission.status == "completed")

    try:
        with suppress(NotFound):  # the project is no longer registered
            if (files := await asyncio.to_thread(remove)) is not None:
                await context.note(commission.id, "keep_ignored", files.text(), uncommitted=asdict(files))
    except (GuildError, OSError) as error:
        _log.warning("%s: the checkout could not be removed: %s", commission.id, error)


# conflicts

CONFLICT = "conflict"


def _ask_about_conflict(connection: Connection, commission: Commission, now: str) -> None:
    """Add an ask about a merge conflict to the inbox."""
    run = str(commission.run)
    files = "\n".join(f"- {path}" for path in commission.conflict)
    body = (
        f"Changed on both {commission.branch} and {INTEGRATION}:\n{files}\n\n"
        f"redispatch: start over from the current {INTEGRATION}.  abandon: end the commission without its work.  "
        "keep: leave the branch and the checkout for you to merge."
    )
    title = f"Merge conflict: the work of {commission.worker} in {commission.id} ({commission.title})"
    ask = Ask(
        id=new_id(ASK),
        run=run,
        root=run,
        kind=CONFLICT,
        key="merge",
        subject=fingerprint([commission.id, commission.attempt, list(commission.conflict)]),
        question=Question(title=title, body=body, choices=("redispatch", "abandon", "keep")),
        created_at=now,
    )
    run_records.add_ask(connection, ask)


def withdraw_asks(connection: Connection, commission: Commission, now: str) -> None:
    """Withdraw the open asks of an attempt: conflicts and questions."""
    if commission.run is not None:
        run_records.withdraw_kind(connection, commission.run, CONFLICT, now)
        run_records.withdraw_kind(connection, commission.run, "question", now)
