"""Read-only queries about workflows: find an instance by its target, show its agents and its messages.

Does not import the scheduler, so that commands that only read start fast. Does not change anything (`service.py`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from guildhall.room import records as room_records
from guildhall.runs.record.records import find_run
from guildhall.workflow import records, target
from guildhall.workflow.target import AgentShown, Instance, Target, WorkflowShown

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from guildhall.room.model import Message


_MOST = 10_000  # messages that are shown


def named(connection: Connection, wanted: Target) -> Instance:
    """The workflow that a target names, with the agent in it, if it names one."""
    target.checked(wanted)
    found = records.newest(connection, wanted.workflow, wanted.tag)
    if found is None:
        known = records.listed(connection)
        if wanted.agent is not None and wanted.workflow == target.GLOBAL:
            raise _nobody(wanted, connection, known)
        raise target.missing(wanted.team, [one.target for one in known])
    names = [agent.name for agent in records.agents_of(connection, found.id)]
    if wanted.agent is not None and wanted.agent not in names:
        if wanted.workflow == target.GLOBAL:
            raise _nobody(wanted, connection, records.listed(connection))
        raise target.missing(wanted, [replace(wanted, agent=name) for name in names])
    return found


def _nobody(wanted: Target, connection: Connection, known: list[Instance]) -> Exception:
    """A bare name may be meant for an agent of some workflow."""
    every = [replace(one.target, agent=agent.name) for one in known for agent in records.agents_of(connection, one.id)]
    error = target.missing(wanted, every)
    same = [str(one) for one in every if one.agent == wanted.agent]
    if same:
        error.hint = f"Did you mean {', '.join(same[:5])}?"
    return error


def shown(connection: Connection, instance: Instance) -> WorkflowShown:
    """A workflow as listings show it."""
    run = find_run(connection, instance.id)
    return WorkflowShown(
        run=instance.id,
        name=instance.name,
        tag=instance.tag,
        generation=instance.generation,
        mode=instance.mode,
        status=instance.status,
        reason=instance.reason,
        file=instance.path,
        created_at=instance.created_at,
        ended_at=instance.ended_at,
        cost_usd=run.cost_usd if run else None,
        messages=room_records.count_messages(connection, instance.room),
        agents=_agents(connection, instance),
    )


def _agents(connection: Connection, instance: Instance) -> tuple[AgentShown, ...]:
    seats = {seat.agent: seat for seat in room_records.seats_of(connection, instance.room)}
    unread = room_records.count_unread(connection, instance.room)
    spent = records.spent(connection, instance.id)
    schedules = {one.agent: one for one in records.schedules_of(connection, instance.room)}
    return tuple(
        AgentShown(
            target=replace(instance.target, agent=agent.name),
            status=agent.status,
            run=agent.run,
            attempts=agent.attempts,
            due_at=agent.due_at,
            task=seats[agent.name].task if agent.name in seats else None,
            state=seats[agent.name].state if agent.name in seats else None,
            unread=unread.get(agent.name, 0),
            runs=spent.get(agent.name, (0, None))[0],
            cost_usd=spent.get(agent.name, (0, None))[1],
            schedule=schedules.get(agent.name) or schedules.get(None),
        )
        for agent in records.agents_of(connection, instance.id)
    )


def said(connection: Connection, instance: Instance, *, since: int = 0) -> list[Message]:
    """What was said in one generation of a workflow, after a message."""
    until = records.next_began(connection, instance)
    found = room_records.channel(connection, instance.room, since=since, limit=_MOST, newest=True)
    return [one for one in found if one.at >= instance.created_at and (until is None or one.at < until)]
