"""Read-only queries about workflows: find an instance by its target, show its agents and its messages.

Does not import `team.py`, so that commands that only read start fast. Does not change anything (`service.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from guildhall.core.errors import UsageError
from guildhall.core.ids import RUN, is_id
from guildhall.core.paths import is_same_project
from guildhall.room import document_records
from guildhall.room import records as room_records
from guildhall.runs.record.records import find_run
from guildhall.workflow import records, target
from guildhall.workflow.instance import AgentSummary, Instance, WorkflowSummary

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from guildhall.room.model import Message
    from guildhall.workflow.target import Target

_MAX_MESSAGES = 10_000
_MAX_MESSAGES_TO_USER = 10  # of each agent, in a summary
_COPIED = ("project", "name", "tag", "generation", "mode", "status", "reason", "created_at", "ended_at")


def find_instance(connection: Connection, wanted: Target) -> Instance:
    """Return the workflow instance of a target. Raise NotFound if it or the agent of the target does not exist."""
    target.check_names(wanted)
    candidates = list_candidates(connection, wanted)
    instance = choose(wanted, candidates)
    agents = _agent_names(connection, instance) if instance is not None else []
    if instance is not None and wanted.agent in (None, *agents):
        return instance
    others = [
        f"{replace(_address(other, wanted), agent=wanted.agent)} ({other.project})"
        for other in candidates
        if other != instance and wanted.agent in (None, *_agent_names(connection, other))
    ]
    if others:
        hint = f"Other projects have it. Use one of {', '.join(others[:5])}."
        raise target.unknown_target(wanted, (), hint=hint)
    known = {other.id: _address(other, wanted) for other in records.list_instances(connection)}
    if wanted.agent is not None and wanted.workflow == target.GLOBAL:  # it may be the agent of another workflow
        known_agents = [
            replace(address, agent=agent.name)
            for id, address in known.items()
            for agent in records.list_agents(connection, id)
        ]
        same_name = [str(agent) for agent in known_agents if agent.agent == wanted.agent]
        hint = f"Did you mean {', '.join(same_name[:5])}?" if same_name else None
        raise target.unknown_target(wanted, known_agents, hint=hint)
    if instance is None:
        raise target.unknown_target(wanted.workflow_target, known.values())
    raise target.unknown_target(wanted, [replace(wanted, agent=name) for name in agents])


def list_candidates(connection: Connection, wanted: Target) -> list[Instance]:
    """Return the instances with the names of a target in all projects, or the instance with its id."""
    if is_id(wanted.workflow, RUN):
        found = records.find_instance(connection, wanted.workflow)
        return [found] if found is not None else []
    return records.list_instances(connection, name=wanted.workflow, tag=wanted.tag)


def choose(wanted: Target, candidates: Iterable[Instance]) -> Instance | None:
    """Return the candidate in the project of a target, or None. Raise UsageError if several projects match."""
    by_project = {Path(one.project): one for one in sorted(candidates, key=lambda one: one.created_at)}
    if wanted.project is not None and (exact := by_project.get(wanted.project.resolve())) is not None:
        return exact
    matching = [one for one in by_project.values() if _is_reachable(one, wanted)]
    if len(matching) > 1:
        listed = ", ".join(f"@{one.id} ({one.project})" for one in matching[:5])
        raise UsageError(f"ambiguous target {wanted}: {len(matching)} projects have it", hint=f"Use one of {listed}.")
    return matching[0] if matching else None


def _is_reachable(instance: Instance, wanted: Target) -> bool:
    """Return True if the names of a target can mean an instance."""
    has_id, project = is_id(wanted.workflow, RUN), wanted.project
    return has_id or project is None or is_same_project(Path(instance.project), project.resolve())


def _address(instance: Instance, wanted: Target) -> Target:
    """Return the target of an instance, with its id if its names would not be found in the project of `wanted`."""
    return instance.target if _is_reachable(instance, wanted) else target.Target(None, instance.id)


def _agent_names(connection: Connection, instance: Instance) -> list[str]:
    return [agent.name for agent in records.list_agents(connection, instance.id)]


def describe(connection: Connection, instance: Instance) -> WorkflowSummary:
    """Return the summary of a workflow for listings. A workflow that a crash of the hall interrupted is paused."""
    run = find_run(connection, instance.id)
    if run is not None and run.status == "interrupted":
        instance = replace(instance, status="paused", reason=run.reason)
    return WorkflowSummary(
        run=instance.id,
        file=instance.path,
        **{name: getattr(instance, name) for name in _COPIED},
        cost_usd=run.cost_usd if run else None,
        messages=room_records.count_messages(connection, instance.room),
        agents=_agent_summaries(connection, instance),
    )


def _agent_summaries(connection: Connection, instance: Instance) -> tuple[AgentSummary, ...]:
    statuses = {status.agent: status for status in room_records.list_agents(connection, instance.room)}
    unread = room_records.count_unread(connection, instance.room)
    spent = records.cost_by_agent(connection, instance.id)
    until = records.next_generation_start(connection, instance)
    to_user = room_records.messages_to_user(
        connection, instance.room, since=instance.created_at, until=until, limit=_MAX_MESSAGES_TO_USER
    )
    answers = records.last_answers(connection, instance.id)
    schedules = {schedule.agent: schedule for schedule in records.list_schedules(connection, instance.room)}
    return tuple(
        AgentSummary(
            target=replace(instance.target, agent=agent.name),
            status="paused" if agent.status == "running" and instance.status == "paused" else agent.status,
            **{name: getattr(agent, name) for name in ("run", "attempts", "due_at")},
            task=statuses[agent.name].task if agent.name in statuses else None,
            state=statuses[agent.name].state if agent.name in statuses else None,
            unread=unread.get(agent.name, 0),
            runs=spent.get(agent.name, (0, None))[0],
            cost_usd=spent.get(agent.name, (0, None))[1],
            schedule=schedules.get(agent.name) or schedules.get(None),
            messages_to_user=tuple(
                document_records.read_whole(connection, instance.room, message)
                for message in to_user.get(agent.name, ())
            ),
            answer=answers.get(agent.name),
        )
        for agent in records.list_agents(connection, instance.id)
    )


def list_messages(connection: Connection, instance: Instance, *, since: int = 0) -> list[Message]:
    """Return the messages of one generation of a workflow after a message."""
    until = records.next_generation_start(connection, instance)
    messages = room_records.list_messages(connection, instance.room, since=since, limit=_MAX_MESSAGES, newest=True)
    messages = [message for message in messages if message.at >= instance.created_at]
    return [message for message in messages if until is None or message.at < until]
