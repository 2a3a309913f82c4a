"""What a workflow gives: the last that an agent said to all; of agents that share nothing, what each of them gave."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from guildhall.workflow import records

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from guildhall.room.room import Room
    from guildhall.workflow.model import Workflow


def result_of(workflow: Workflow, room: Room, *, since: str = "") -> str:
    """The last that an agent said to all, after the time at which this generation began."""
    names = {agent.name for agent in workflow.agents}
    for message in reversed(room.messages(newest=True)):
        if message.sender in names and message.kind == "message" and message.at >= since:
            return message.content
    return ""


def outputs_of(connection: Connection, instance: str, workflow: Workflow) -> str:
    """What the agents gave: the text of the only one, or of each under its name."""
    runs = {agent.name: records.last_run(connection, instance, agent.name) for agent in workflow.agents}
    given = {name: _text(run.output) for name, run in runs.items() if run is not None}
    if len(given) == 1:
        return next(iter(given.values()))
    return "\n\n".join(f"{name}:\n{text}" for name, text in given.items())


def _text(output: object) -> str:
    return output if isinstance(output, str) else json.dumps(output, indent=2, ensure_ascii=False)
