"""How a workflow begins: whether its tag is free, the room that its file wants, what it is on record as."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.core.errors import Conflict
from guildhall.core.ids import digest
from guildhall.room.service import RoomSettings
from guildhall.workers.definition import Definition as WorkerDefinition
from guildhall.workers.model import Worker
from guildhall.workflow.definition import NOBODY
from guildhall.workflow.instance import OVER

if TYPE_CHECKING:
    from guildhall.workflow.instance import Instance
    from guildhall.workflow.interpolate import Values
    from guildhall.workflow.model import Workflow


def furnished(workflow: Workflow, values: Values) -> RoomSettings:
    """The room that the file wants."""
    context = workflow.definition.context
    owner = context.document_owner
    return RoomSettings(
        documents=workflow.documents(values),
        owner=None if owner == NOBODY else owner,
        projection=workflow.room_folder(values) if context.enabled and context.provider == "file" else None,
        max_hops=workflow.definition.limits.max_hops,
        max_repeats=workflow.definition.limits.max_repeats,
    )


def refuse_alive(before: Instance | None, workflow: Workflow, *, fresh: bool) -> None:
    """Raises where the tag is not free: it lives, or is that of another file."""
    if before is None:
        return
    if before.status not in OVER:
        see = f"See it with `guild log -f {before.target}`, stop it with `guild stop {before.target}`, or use --tag."
        hint = f"Go on with it: guild resume {before.id}. {see}" if before.status == "paused" else see
        raise Conflict(f"{before.target} is not over: {before.status} (run {before.id})", hint=hint)
    if before.path != str(workflow.path) and not fresh:
        raise Conflict(
            f"{before.target} is the workflow of {before.path}",
            hint="Use another tag (--tag), another name, or --fresh for a room of its own.",
        )


def refuse_replaced(instance: Instance, newest: Instance | None) -> None:
    """Raises where a later generation has taken the room over: two teams would answer the same mail."""
    if newest is not None and newest.id != instance.id:
        message = f"{instance.target} was begun anew as {newest.id}, which is {newest.status}: {instance.id} is over"
        raise Conflict(message, hint=f"See guild show {newest.target}.")


def asked_of(workflow: Workflow) -> str:
    """What the run of a workflow is on record as asked for."""
    return workflow.definition.kickoff or f"Start {workflow.name}."


def conducting(workflow: Workflow) -> Worker:
    """Who stands for the workflow itself on record: it has the setup's commands and nothing else."""
    definition = WorkerDefinition(name=workflow.name, description=workflow.definition.description, base=False)
    return Worker(
        definition=definition,
        instructions="",
        scope="workflow",
        digest=digest(workflow.text.encode()),
        path=workflow.path,
    )
