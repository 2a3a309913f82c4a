"""Queries for workflow instances, their agents, their schedules and their databases.

Does not read rooms (`room/records.py`) or journals (`runs/record`).

Invariant: only this module of the package knows the columns of these tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, RowMapping, Text, and_, bindparam, cast, delete, func, insert, select, text, update

from guildhall.runs.record.records import find_call_run
from guildhall.store.tables import agents, databases, runs, schedules, workflows
from guildhall.workflow.instance import FINAL_PHASES, AgentState, Instance, Schedule

if TYPE_CHECKING:
    from guildhall.runs.model import Run

# Statements of every turn are built once, because building one costs more than executing it.
_AGENT = select(agents).where(agents.c.workflow == bindparam("instance"), agents.c.name == bindparam("name"))
_CHANGE_AGENT = update(agents).where(agents.c.workflow == bindparam("instance"), agents.c.name == bindparam("who"))
_RUNS_OF_AGENT = select(func.count()).where(runs.c.workflow == bindparam("instance"), runs.c.agent == bindparam("name"))


def add_instance(connection: Connection, instance: Instance, names: Sequence[str]) -> None:
    """Add an instance with its agents."""
    connection.execute(insert(workflows).values(**vars(instance), frame={}))
    for ordinal, name in enumerate(names):
        add_agent(connection, instance.id, name, ordinal)
    connection.execute(update(runs).where(runs.c.id == instance.id).values(workflow=instance.id))


def change_instance(connection: Connection, instance: str, **columns: Any) -> None:
    connection.execute(update(workflows).where(workflows.c.id == instance).values(**columns))


def find_instance(connection: Connection, instance: str) -> Instance | None:
    row = connection.execute(select(workflows).where(workflows.c.id == instance)).mappings().first()
    return _instance(row) if row else None


def newest_instance(connection: Connection, project: str, name: str, tag: str) -> Instance | None:
    """Return the last generation of a workflow and tag in a project, or None."""
    query = select(workflows).where(workflows.c.project == project, workflows.c.name == name, workflows.c.tag == tag)
    row = connection.execute(query.order_by(workflows.c.generation.desc()).limit(1)).mappings().first()
    return _instance(row) if row else None


def next_generation_start(connection: Connection, instance: Instance) -> str | None:
    """Return the start time of the next generation in the same room, or None."""
    later = (workflows.c.room == instance.room) & (workflows.c.generation > instance.generation)
    return connection.execute(select(func.min(workflows.c.created_at)).where(later)).scalar_one()


def list_instances(connection: Connection, *, include_ended: bool = True, **names: str) -> list[Instance]:
    """Return the last generation of each workflow and tag in each project, newest first.

    `names`: only with this name, tag or project.
    """
    same_target = and_(*(workflows.c[name] == _other.c[name] for name in ("project", "name", "tag")))
    last = select(func.max(workflows.c.generation)).where(same_target).scalar_subquery()
    query = select(_other).where(_other.c.generation == last).order_by(_other.c.created_at.desc())
    query = query.filter_by(**names)
    if not include_ended:
        query = query.where(_other.c.status.not_in(FINAL_PHASES))
    return [_instance(row) for row in connection.execute(query).mappings()]


_other = workflows.alias()


def _instance(row: RowMapping) -> Instance:
    return Instance(**{field.name: row[field.name] for field in fields(Instance)})


# agents


def add_agent(connection: Connection, instance: str, name: str, ordinal: int) -> None:
    values: dict[str, Any] = {"name": name, "ordinal": ordinal, "status": "idle", "attempts": 0, "definition": {}}
    connection.execute(insert(agents).values(workflow=instance, **values))


def get_agent(connection: Connection, instance: str, name: str) -> AgentState:
    return _agent(connection.execute(_AGENT, {"instance": instance, "name": name}).mappings().one())


def list_agents(connection: Connection, instance: str) -> list[AgentState]:
    """Return the agents in the order of the file."""
    query = select(agents).where(agents.c.workflow == instance).order_by(agents.c.ordinal)
    return [_agent(row) for row in connection.execute(query).mappings()]


def change_agent(connection: Connection, instance: str, name: str, **columns: Any) -> None:
    connection.execute(_CHANGE_AGENT, {"instance": instance, "who": name, **columns})


def assign_run(connection: Connection, instance: str, name: str, run: str) -> None:
    """Record a run as the current run of an agent."""
    change_agent(connection, instance, name, status="running", run=run, due_at=None)
    connection.execute(update(runs).where(runs.c.id == run).values(workflow=instance, agent=name))


def agent_notes(connection: Connection, instance: str, name: str) -> dict[str, Any]:
    """Return further data about an agent: its last error, and its number of turns without progress."""
    query = select(agents.c.definition).where(agents.c.workflow == instance, agents.c.name == name)
    return dict(connection.execute(query).scalar_one())


def add_agent_note(connection: Connection, instance: str, name: str, **notes: Any) -> None:
    change_agent(connection, instance, name, definition={**agent_notes(connection, instance, name), **notes})


def talk_turns(connection: Connection, instance: str) -> dict[str, int]:
    """Return the number of turns since the last progress, by agent."""
    query = select(agents.c.name, agents.c.definition).where(agents.c.workflow == instance)
    counted = ((row.name, row.definition.get("talked", 0)) for row in connection.execute(query))
    return {name: turns for name, turns in counted if turns}


def reset_talk_turns(connection: Connection, instance: str) -> None:
    """Set the turn counts of all agents to 0."""
    for name in talk_turns(connection, instance):
        add_agent_note(connection, instance, name, talked=0)


def count_runs(connection: Connection, instance: str, name: str) -> int:
    """Return the number of runs that an agent has had."""
    return connection.execute(_RUNS_OF_AGENT, {"instance": instance, "name": name}).scalar_one()


def last_run(connection: Connection, instance: str, name: str) -> Run | None:
    """Return the newest run of an agent, or None."""
    return find_call_run(connection, instance, f"{name}/{count_runs(connection, instance, name)}")


def _agent(row: RowMapping) -> AgentState:
    return AgentState(**{field.name: row[field.name] for field in fields(AgentState)})


def cost_by_agent(connection: Connection, instance: str) -> dict[str, tuple[int, float | None]]:
    """Return the number of runs of each agent, and their cost with child runs (None if no model has a price)."""
    columns = (runs.c.id, runs.c.parent, runs.c.agent, runs.c.cost_usd)
    agent_by_run: dict[str, str] = {}
    costs: dict[str, tuple[int, float | None]] = {}
    for row in connection.execute(select(*columns).where(runs.c.root == instance).order_by(text("runs.rowid"))):
        name = row.agent or agent_by_run.get(row.parent or "")
        if name is None:
            continue
        agent_by_run[row.id] = name
        count, cost_usd = costs.get(name, (0, None))
        total_usd = cost_usd if row.cost_usd is None else round((cost_usd or 0.0) + row.cost_usd, 9)
        costs[name] = (count + (row.agent is not None), total_usd)
    return costs


def last_answers(connection: Connection, instance: str) -> dict[str, Any]:
    """Return the last output of each agent that is not empty."""
    newest_first = func.row_number().over(partition_by=runs.c.agent, order_by=text("runs.rowid DESC"))
    has_output = cast(runs.c.output, Text).not_in(("null", '""'))
    ranked = select(runs.c.agent, runs.c.output, newest_first.label("rank"))
    ranked = ranked.where(runs.c.workflow == instance, runs.c.agent.is_not(None), has_output).subquery()
    found = connection.execute(select(ranked.c.agent, ranked.c.output).where(ranked.c.rank == 1))
    return {row.agent: row.output for row in found}


# schedules


def put_schedule(connection: Connection, room: str, schedule: Schedule, at: str) -> None:
    """Set or replace the schedule of an agent, or of the whole workflow."""
    drop_schedule(connection, room, schedule.agent)
    values = {name: getattr(schedule, name) for name in ("every", "cron", "prompt", "due_at")}
    connection.execute(insert(schedules).values(room=room, agent=schedule.agent or "", created_at=at, **values))


def drop_schedule(connection: Connection, room: str, agent: str | None) -> bool:
    """Delete a schedule. Return True if it existed."""
    condition = (schedules.c.room == room) & (schedules.c.agent == (agent or ""))
    return connection.execute(delete(schedules).where(condition)).rowcount > 0


def list_schedules(connection: Connection, room: str) -> list[Schedule]:
    """Return the schedules of a room, the one for the whole workflow first."""
    query = select(schedules).where(schedules.c.room == room).order_by(schedules.c.agent)
    names = ("every", "cron", "prompt", "due_at")
    found = connection.execute(query).mappings()
    return [Schedule(agent=row["agent"] or None, **{name: row[name] for name in names}) for row in found]


# databases


def add_database(connection: Connection, path: str, at: str) -> None:
    """Register the database of a workflow in the home."""
    connection.execute(insert(databases).values(path=path, added_at=at).prefix_with("OR IGNORE"))


def list_databases(connection: Connection) -> list[str]:
    """Return the paths of the registered databases, oldest first."""
    return list(connection.execute(select(databases.c.path).order_by(databases.c.added_at)).scalars())
