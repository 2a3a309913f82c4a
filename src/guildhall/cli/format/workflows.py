"""Workflows and their agents, in rows that people read: for `guild ls` and `guild show`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.cli.screen import money
from guildhall.core.clock import moment
from guildhall.runs.purpose import WorkflowPurpose
from guildhall.workflow.target import GLOBAL, Target

if TYPE_CHECKING:
    from collections.abc import Sequence

    from guildhall.cli.screen import Screen
    from guildhall.runs.model import Run
    from guildhall.workflow.instance import AgentShown, WorkflowShown


def name_of(run: Run) -> str:
    """Who a run is of: a worker, or the target of a workflow."""
    workflow = run.purpose_as(WorkflowPurpose)
    return str(Target(None, run.worker, workflow.tag)) if workflow else run.worker


def working_rows(run: Run, workflow: WorkflowShown, since: str) -> list[list[str]]:
    """A workflow as one entry, with its agents below; those that stand alone are entries of their own."""
    agents = [agent for agent in workflow.agents if agent.status != "stopped" or workflow.name != GLOBAL]
    if workflow.name == GLOBAL:
        return [[agent.run or run.id, str(agent.target), _agent(agent), since] for agent in agents]
    head = f"{workflow.status}; {workflow.messages} messages; {money(workflow.cost_usd)}"
    return [[run.id, str(workflow.target), head, since], *(["", f"· {one.name}", _agent(one), ""] for one in agents)]


def _agent(agent: AgentShown) -> str:
    """How an agent stands, in a few words."""
    told = [agent.status if not agent.task else f"{agent.status}: {agent.task}"]
    told += [agent.state] if agent.state else []
    told += [f"{agent.unread} unread"] if agent.unread else []
    told += [f"wakes {agent.schedule.wakeup}"] if agent.schedule else []
    told += [money(agent.cost_usd)] if agent.runs else []
    return "; ".join(told)


def given_up(workflow: WorkflowShown) -> list[AgentShown]:
    """The agents of a workflow that goes on which do nothing more until a person says so."""
    return [agent for agent in workflow.agents if agent.status == "failed"]


def how_to_try_again(agent: AgentShown) -> str:
    """The command that lets an agent work again."""
    return f"guild start {agent.target}"


def print_workflow(workflow: WorkflowShown, screen: Screen) -> None:
    """All about a workflow, but for what was said."""
    again = f" (generation {workflow.generation})" if workflow.generation > 1 else ""
    rows = [
        ["workflow", f"{workflow.target}{again}"],
        ["run", workflow.run],
        ["status", f"{workflow.status} ({workflow.reason})" if workflow.reason else workflow.status],
        ["mode", "until it is stopped" if workflow.mode == "start" else "until it is quiet"],
        ["started", workflow.created_at],
    ]
    if workflow.name != GLOBAL:
        rows.insert(1, ["file", workflow.file])
    if workflow.ended_at:
        rows.append(["ended", workflow.ended_at])
    rows.append(["said", f"{workflow.messages} messages"])
    rows.append(["cost", money(workflow.cost_usd)])
    screen.table(rows)
    print_agents(workflow.agents, screen)


def print_agents(agents: Sequence[AgentShown], screen: Screen) -> None:
    if not agents:
        return
    screen.heading("\nagents")
    screen.table(
        [
            [
                str(agent.target),
                agent.status,
                "; ".join(filter(None, (agent.task, agent.state))) or "-",
                f"{agent.unread} unread",
                "1 run" if agent.runs == 1 else f"{agent.runs} runs",
                money(agent.cost_usd) if agent.runs else "-",
                _wakes(agent),
            ]
            for agent in agents
        ],
        indent="  ",
    )


def _wakes(agent: AgentShown) -> str:
    schedule = agent.schedule
    if schedule is None:
        return ""
    due = f", next {moment(schedule.due_at).astimezone():%Y-%m-%d %H:%M:%S}" if schedule.due_at else ""
    return f"wakes {schedule.wakeup}{due}"
