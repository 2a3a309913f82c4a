"""Drafts: create, edit and delete commissions, and check the fields of a draft.

An edit of an active commission cancels the current attempt and opens the next attempt, in one transaction.
Does not start commissions (`attempts.py`).

Invariant: only the user can set checks or a model, or name a worker by its file.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from guildhall.core.errors import Conflict, NotDeletable, UsageError
from guildhall.core.ids import COMMISSION, is_name, new_id
from guildhall.projects.commissions import dependencies, records
from guildhall.projects.commissions.artifact import render, write_artifact
from guildhall.projects.commissions.attempts import open_attempt, record_cancel, stop
from guildhall.projects.commissions.completion import remove_checkout, withdraw_asks
from guildhall.projects.commissions.model import By, Commission, Draft, parse_artifact_path
from guildhall.projects.commissions.states import ACTIVE, FINAL
from guildhall.projects.model import Project, is_hall_path
from guildhall.workers.registry import FILE_SUFFIXES

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from guildhall.core.request_frame import Frame
    from guildhall.projects.commissions.context import CommissionContext

_MODEL_FIELDS = frozenset({"worker", "model", "max_budget_usd", "reviewer"})
_SCOPES = ("", "project", "home", "package", "shipped")  # prefixes of the name of a worker


async def create(
    context: CommissionContext,
    project: Project,
    draft: Draft,
    frame: Frame,
    *,
    by: By = "person",
    made_by: str | None = None,
) -> Commission:
    """Create a commission, which is blocked if a dependency is missing, else pending."""
    check_draft(context, project, draft, frame, by)
    if draft.dependencies:
        await asyncio.to_thread(dependencies.follow_user_branch, context, project.name)
    await asyncio.to_thread(context.branches(project).ensure)
    now = context.now()
    commission = Commission(
        id=new_id(COMMISSION),
        project=project.name,
        draft=draft,
        status="pending",
        by=by,
        made_by=made_by,
        created_at=now,
        changed_at=now,
    )
    dependencies.check_acyclic([*context.list_commissions(project.name), commission], commission.id)
    if missing := await asyncio.to_thread(dependencies.find_missing, context, commission):
        commission = replace(commission, status="blocked", reason=dependencies.blocked_reason(missing))
    _remember_secrets(context, commission)
    author = f"{by}, in {made_by.partition('#')[0]}" if made_by else by
    await context.store.write(lambda connection: records.add(connection, commission, "create", f"created by {author}"))
    await write_artifact(context, commission.id)
    return context.get(commission.id)


async def edit(
    context: CommissionContext, id: str, changes: Mapping[str, Any], frame: Frame, *, by: By = "person"
) -> Commission:
    """Change fields of a draft, and restart an active commission."""
    if not changes:
        raise UsageError("no changes given", hint="Give at least one field, such as title or prompt.")
    async with context.locks[id]:
        before = context.get(id)
        draft = _edited_draft(context, before, changes, frame, by)
        note = f"edited by {by}: {', '.join(changes)}"
        if before.status in ACTIVE:
            await _restart(context, before, draft, note)
        else:
            await context.store.write(lambda connection: _record_edit(connection, id, draft, note, context.now()))
            await dependencies.update_blocked(context, before.project)
        if context.get(id).status not in ACTIVE:
            await write_artifact(context, id)
        return context.get(id)


def _edited_draft(
    context: CommissionContext, before: Commission, changes: Mapping[str, Any], frame: Frame, by: By
) -> Draft:
    if before.status in FINAL:
        raise Conflict(f"cannot edit commission {before.id}: it is {before.status}", hint="Create another commission.")
    draft = before.draft.edit(changes)
    check_draft(context, context.project(before), draft, frame, by, changed=tuple(changes))
    after = replace(before, draft=draft)
    _remember_secrets(context, after)
    others = [other for other in context.list_commissions(before.project) if other.id != before.id]
    dependencies.check_acyclic([*others, after], before.id)
    return draft


def _record_edit(connection: Connection, id: str, draft: Draft, note: str, now: str) -> None:
    records.update_fields(connection, id, now, draft=draft)
    records.add_note(connection, id, "edit", note, now)


async def _restart(context: CommissionContext, before: Commission, draft: Draft, note: str) -> None:
    """Cancel the attempt, change the draft and open the next attempt, in a single transaction."""
    id = before.id
    context.branches_of(before).check_movable()
    if draft.dependencies:
        await asyncio.to_thread(dependencies.follow_user_branch, context, before.project)
    missing = await asyncio.to_thread(dependencies.find_missing, context, replace(before, draft=draft))
    stopped = await stop(context, id)
    if stopped is None:
        ended = context.get(id)
        message = f"cannot edit commission {id}: its status became {ended.status} meanwhile"
        raise Conflict(message, hint=ended.next_command)

    def write(connection: Connection) -> None:
        now = context.now()
        data = {"result": stopped.result} if stopped.is_submitted else {}
        record_cancel(connection, stopped, f"{note}: restarting", now)
        _record_edit(connection, id, draft, note, now)
        records.record_event(connection, id, "reopen", "edited while active", now, data=data)
        if missing:
            records.record_event(
                connection, id, "block", dependencies.blocked_reason(missing), now, data={"missing": missing}
            )
        else:
            open_attempt(connection, id, now)

    await context.store.write(write)
    await remove_checkout(context, stopped)


async def delete(context: CommissionContext, id: str) -> None:
    """Delete the row and the open asks of a completed or abandoned commission. Artifact, commits and runs remain."""
    async with context.locks[id]:
        await context.store.write(lambda connection: _delete(connection, id, context.now()))


def _delete(connection: Connection, id: str, now: str) -> None:
    commission = records.get(connection, id)
    if commission.status not in FINAL:
        hint = f"Cancel it first: guild stop {id}{'' if commission.status in ACTIVE else ' --abandon'}"
        raise NotDeletable(f"cannot delete commission {id}: it is {commission.status}", hint=hint)
    others = records.list_commissions(connection, project=commission.project)
    unfinished = [other for other in others if other.status not in FINAL]
    dependents = [other.id for other in unfinished if commission.path in other.draft.dependencies]
    if dependents:
        hint = "Cancel these commissions first, or edit their dependencies. Otherwise they would stay blocked."
        message = f"cannot delete commission {id}: other commissions depend on it: {', '.join(dependents)}"
        raise NotDeletable(message, hint=hint)
    withdraw_asks(connection, commission, now)
    records.remove(connection, id, now)


# checks


def check_draft(
    context: CommissionContext,
    project: Project,
    draft: Draft,
    frame: Frame,
    by: By,
    *,
    changed: Collection[str] | None = None,
) -> None:
    """Raise if a draft cannot be carried out, or sets a field that `by` may not set.

    `changed`: the names of the edited fields, or None for a new draft. Only edited fields are checked for `by`.
    """
    draft.check()
    if reserved := [path for path in draft.artifacts if is_hall_path(path)]:
        hint = "Choose another folder, such as .lore/plans."
        raise UsageError(f"artifacts: invalid path {reserved[0]!r}: only the hall may write there", hint=hint)
    if by != "person":
        _check_not_reserved(draft, changed)
    if changed is None or "dependencies" in changed:
        for id in filter(None, map(parse_artifact_path, draft.dependencies)):
            context.get(id)  # raises NotFound: an unknown commission would block for ever
    frame = context.project_frame(project, frame)
    worker = context.find_worker(draft.worker, frame)
    reviewer = context.find_worker(draft.reviewer, frame) if draft.reviewer is not None else None
    if changed is not None and _MODEL_FIELDS.isdisjoint(changed):
        return
    has_budget = (draft.max_budget_usd or worker.definition.limits.max_budget_usd) is not None
    context.checks.check_usable(worker, frame, override=draft.model, has_budget=has_budget)
    if reviewer is not None:
        context.checks.check_usable(reviewer, frame)


def _check_not_reserved(draft: Draft, changed: Collection[str] | None) -> None:
    """Raise if a draft sets checks or a model, or names a worker by its file, which a worker may have written."""
    for field in ("checks", "model"):
        if getattr(draft, field) and (changed is None or field in changed):
            raise UsageError(f"{field}: only the user may set this field", hint="Omit the field.")
    for name in filter(None, (draft.worker, draft.reviewer)):
        scope, _, bare = name.rpartition("/")
        if scope not in _SCOPES or not is_name(bare) or bare.lower().endswith(FILE_SUFFIXES):
            raise UsageError(f"invalid worker name {name[:60]!r}", hint="Use the name of a worker, not a path.")


def _remember_secrets(context: CommissionContext, commission: Commission) -> None:
    """Store the redacted draft, so that a later hall without these secrets writes the same artifact."""
    render(commission, (), redact=context.redact)
