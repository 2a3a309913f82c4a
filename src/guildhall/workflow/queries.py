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
_COPIED = ("name", "tag", "generation", "mode", "status", "reason", "created_at", "ended_at")


def named(connection: Connection, wanted: Target) -> Instance:
    """Return the workflow that a target names, and that has the agent that it names, if any."""
    target.check_names(wanted)
    found = records.newest(connection, wanted.workflow, wanted.tag)
    agents = [agent.name for agent in records.agents_of(connection, found.id)] if found else []
    if found is not None and wanted.agent in (None, *agents):
        return found
    known = records.listed(connection)
    if wanted.agent is not None and wanted.workflow == target.GLOBAL:  # it may be the agent of another workflow
        every = [
            replace(one.target, agent=each.name) for one in known for each in records.agents_of(connection, one.id)
        ]
        same = [str(one) for one in every if one.agent == wanted.agent]
        raise target.missing(wanted, every, hint=f"Did you mean {', '.join(same[:5])}?" if same else None)
    if found is None:
        raise target.missing(wanted.team, [one.target for one in known])
    raise target.missing(wanted, [replace(wanted, agent=name) for name in agents])


def shown(connection: Connection, instance: Instance) -> WorkflowShown:
    """Return a workflow as listings show it."""
    run = find_run(connection, instance.id)
    return WorkflowShown(
        run=instance.id,
        file=instance.path,
        **{name: getattr(instance, name) for name in _COPIED},
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
    """Return the messages of one generation of a workflow, after a message."""
    until = records.next_began(connection, instance)
    found = room_records.channel(connection, instance.room, since=since, limit=_MOST, newest=True)
    return [one for one in found if one.at >= instance.created_at and (until is None or one.at < until)]
