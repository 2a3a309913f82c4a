"""Workflow output: prints workflows and their agents, and formats the events and messages of a room as lines.

Does not follow a run (see `cli.follow`).

Invariant: messages are complete, and their further lines are indented, so that no line can pass for another message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guildhall.cli.format.runs import text_of
from guildhall.cli.screen import Screen, money, one_line, plain
from guildhall.core.clock import parse_stamp
from guildhall.core.paths import is_same_project
from guildhall.core.text_checks import format_count
from guildhall.runs.purpose import WorkflowPurpose
from guildhall.workflow.target import GLOBAL, Target

if TYPE_CHECKING:
    from guildhall.room.model import Message
    from guildhall.runs.model import Run
    from guildhall.workflow.instance import AgentSummary, WorkflowSummary

# Tools whose calls are printed as the event that they cause. Only a failed call is printed as a call.
SHOWN_AS_EVENTS = frozenset(
    {
        *("channel_send", "document_write", "document_append", "document_create", "document_suggest"),
        *("proposal_create", "proposal_vote", "proposal_cancel", "status_set", "no_action"),
    }
)
_MAX_LISTED_CHARS = 200  # of a message in a listing
_ROOM = "room"  # speaker of messages that the hall wrote


def name_of(run: Run) -> str:
    """Return the worker of a run, or the target of its workflow."""
    workflow = run.purpose_as(WorkflowPurpose)
    return str(Target(None, run.worker, workflow.tag)) if workflow else run.worker


def address(workflow: WorkflowSummary, here: Path) -> Target:
    """Return the target of a workflow, with its id if its names would not be found in the project `here`."""
    is_here = is_same_project(Path(workflow.project), here)
    return workflow.target if is_here else Target(None, workflow.run)


def working_rows(run: Run, workflow: WorkflowSummary, since: str, here: Path) -> list[list[str]]:
    """Return rows for a workflow and its agents. Agents of global:main have rows of their own."""
    agents = [agent for agent in workflow.agents if agent.status != "stopped" or workflow.name != GLOBAL]
    target = address(workflow, here)
    place = f" (in {workflow.project})" if target != workflow.target else ""
    if workflow.name == GLOBAL:
        return [
            [agent.run or run.id, str(replace(target, agent=agent.name)), _agent(agent) + place, since]
            for agent in agents
        ]
    head = f"{workflow.status}; {format_count(workflow.messages, 'message')}; {money(workflow.cost_usd)}{place}"
    return [[run.id, str(workflow.target), head, since], *(["", f"· {one.name}", _agent(one), ""] for one in agents)]


def _agent(agent: AgentSummary) -> str:
    """Return the state of an agent as one line."""
    parts = (
        f"{agent.status}: {agent.task}" if agent.task else agent.status,
        agent.state,
        f"{agent.unread} unread" if agent.unread else None,
        f"wakes {agent.schedule.wakeup}" if agent.schedule else None,
        money(agent.cost_usd) if agent.runs else None,
    )
    return "; ".join(filter(None, parts))


def failed_agents(workflow: WorkflowSummary) -> list[AgentSummary]:
    """Return the failed agents. Only the user can start them again."""
    return [agent for agent in workflow.agents if agent.status == "failed"]


def print_workflow(workflow: WorkflowSummary, screen: Screen, *, is_whole: bool = False) -> None:
    """Print everything about a workflow except the messages between its agents."""
    again = f" (generation {workflow.generation})" if workflow.generation > 1 else ""
    rows = [
        ["workflow", f"{workflow.target}{again}"],
        ["project", workflow.project],
        ["file", workflow.file if workflow.name != GLOBAL else ""],
        ["run", workflow.run],
        ["status", f"{workflow.status} ({workflow.reason})" if workflow.reason else workflow.status],
        ["mode", "until stopped" if workflow.mode == "start" else "until idle"],
        ["started", workflow.created_at],
        ["ended", workflow.ended_at or ""],
        ["messages", str(workflow.messages)],
        ["cost", money(workflow.cost_usd)],
    ]
    screen.facts(rows)
    print_agents(workflow.agents, screen, is_whole=is_whole)


def print_agents(agents: Sequence[AgentSummary], screen: Screen, *, is_whole: bool = False) -> None:
    """Print the agents with their last messages and answers, in full or shortened to one line each."""
    rows: list[list[str]] = []
    for agent in agents:
        does = "; ".join(filter(None, (agent.task, agent.state))) or "-"
        runs, cost = format_count(agent.runs, "run"), money(agent.cost_usd) if agent.runs else "-"
        wakes, schedule = "", agent.schedule
        if schedule is not None:
            due = f", next {parse_stamp(schedule.due_at).astimezone():%Y-%m-%d %H:%M:%S}" if schedule.due_at else ""
            wakes = f"wakes {schedule.wakeup}{due}"
        rows.append([str(agent.target), agent.status, does, f"{agent.unread} unread", runs, cost, wakes])
    if rows:
        screen.heading("\nagents")
        screen.table(rows, indent="  ")
    for heading, lines in (("messages to you", message_lines(agents)), ("last answers", answer_lines(agents))):
        if lines:
            screen.heading(f"\n{heading}")
            for line in lines:
                screen.result(f"  {line if is_whole else one_line(line, _MAX_LISTED_CHARS)}")


def message_lines(agents: Sequence[AgentSummary], *, after: int = 0) -> list[str]:
    """Return the last messages of the agents to the user, in their order. `after` is the number of a message."""
    messages = (message for agent in agents for message in agent.messages_to_user if message.id > after)
    return [_message_text(one.sender, (), one.content) for one in sorted(messages, key=lambda one: one.id)]


def answer_lines(agents: Sequence[AgentSummary]) -> list[str]:
    """Return the last answer of each agent, except answers that are messages to the user."""
    answers = {agent.name: text_of(agent.answer) for agent in agents}
    sent = {(message.sender, message.content) for agent in agents for message in agent.messages_to_user}
    return [_message_text(name, (), text) for name, text in answers.items() if text and (name, text) not in sent]


def event_line(type: str, data: Mapping[str, Any]) -> str | None:
    """Return an event of a room or a workflow as one line, or None if it is not printed."""
    actor = one_line(str(data.get("actor")), 80)
    match type:
        case "message" | "held":
            speaker = actor if data.get("kind") in ("message", "suggestion", "answer") else _ROOM
            held = " (held: possible loop between agents)" if type == "held" else ""
            return _message_text(speaker, data.get("reached") or (), str(data.get("content"))) + held
        case "vote":
            reason = f" ({data['reason']})" if data.get("reason") else ""
            return one_line(f"{actor} votes on {data.get('id')}: {data.get('choice')}{reason}", 500)
        case "document":
            verb = "created" if data.get("new") else "changed"
            return one_line(
                f"{actor} {verb} the document {data.get('path')} ({format_count(data['size'], 'byte')})", 500
            )
        case "status":
            text = "; ".join(str(data[name]) for name in ("task", "state") if data.get(name))
            return one_line(f"{actor} status: {text}", 500) if text else None
        case "no_action":
            return one_line(f"{actor} needs no action: {data.get('reason') or 'no reason given'}", 500)
        case "trouble":
            return one_line(f"{_ROOM}: {data.get('message')}", 500)
        case "workflow":
            phases = {
                "setup": "setup" if data.get("steps") else None,
                "election": "the agents elect the editor of the documents",
                "idle": "idle",
            }
            return phases.get(str(data.get("phase")))
        case _:
            return None


def _message_text(speaker: str, recipients: Any, content: str) -> str:
    """Return a message with its sender and recipients. Its further lines are indented."""
    to = ", ".join(map(str, recipients))
    first = f"{speaker} to {to}" if to else speaker
    return f"{one_line(first, 200)}: {plain(content).strip()}".replace("\n", "\n    ")


def message_line(message: Message) -> str:
    """Return a message of the channel as a line of `guild log`."""
    speaker = message.sender if message.kind in ("message", "suggestion", "answer") else _ROOM
    return f"      {message.at[11:19]}Z  {_message_text(speaker, message.mentions, message.content)}"
