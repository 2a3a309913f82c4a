"""Workflow output: prints workflows and their agents, with the command that retries a failed agent.

Does not print the messages of a workflow (see `cli.format.rooms`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from guildhall.cli.screen import Screen, money
from guildhall.core.clock import moment
from guildhall.runs.purpose import WorkflowPurpose
from guildhall.workflow.target import GLOBAL, AgentShown, Target, WorkflowShown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from guildhall.runs.model import Run


def name_of(run: Run) -> str:
    """Return the worker of a run, or the target of its workflow."""
    workflow = run.purpose_as(WorkflowPurpose)
    return str(Target(None, run.worker, workflow.tag)) if workflow else run.worker


def working_rows(run: Run, workflow: WorkflowShown, since: str) -> list[list[str]]:
    """Return rows for a workflow and its agents. Agents of global:main have rows of their own."""
    agents = [agent for agent in workflow.agents if agent.status != "stopped" or workflow.name != GLOBAL]
    if workflow.name == GLOBAL:
        return [[agent.run or run.id, str(agent.target), _agent(agent), since] for agent in agents]
    head = f"{workflow.status}; {workflow.messages} messages; {money(workflow.cost_usd)}"
    return [[run.id, str(workflow.target), head, since], *(["", f"· {one.name}", _agent(one), ""] for one in agents)]


def _agent(agent: AgentShown) -> str:
    """Return the state of an agent in a few words."""
    parts = [agent.status if not agent.task else f"{agent.status}: {agent.task}"]
    parts += [agent.state] if agent.state else []
    parts += [f"{agent.unread} unread"] if agent.unread else []
    parts += [f"wakes {agent.schedule.wakeup}"] if agent.schedule else []
    parts += [money(agent.cost_usd)] if agent.runs else []
    return "; ".join(parts)


def failed_agents(workflow: WorkflowShown) -> list[AgentShown]:
    """Return the agents that do not work again until the user starts them."""
    return [agent for agent in workflow.agents if agent.status == "failed"]


def retry_command(agent: AgentShown) -> str:
    """Return the command that starts an agent again."""
    return f"guild start {agent.target}"


def print_workflow(workflow: WorkflowShown, screen: Screen) -> None:
    """Print everything about a workflow except its messages."""
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
