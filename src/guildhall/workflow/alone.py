"""Agents that share nothing (`context: false`): each runs once, on what the kickoff says, and its output counts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from guildhall.room import shared_records
from guildhall.workflow import records

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from guildhall.room.model import Mail
    from guildhall.workflow.model import Workflow


def alone_message(connection: Connection, room: str, batch: Sequence[Mail], *, before: str = "") -> str:
    """What an agent is told that has no room to look something up in: all of it."""
    texts = [_whole(connection, room, mail) for mail in batch]
    return "\n\n".join([*texts, before] if before else texts)


def outputs_of(connection: Connection, instance: str, workflow: Workflow) -> str:
    """What the agents gave: the text of the only one, or of each under its name."""
    runs = {agent.name: records.last_run(connection, instance, agent.name) for agent in workflow.agents}
    given = {name: _text(run.output) for name, run in runs.items() if run is not None}
    if len(given) == 1:
        return next(iter(given.values()))
    return "\n\n".join(f"{name}:\n{text}" for name, text in given.items())


def _whole(connection: Connection, room: str, mail: Mail) -> str:
    kept = mail.message.resource
    found = shared_records.resource(connection, room, kept) if kept else None
    return found[0] if found else mail.message.content


def _text(output: object) -> str:
    return output if isinstance(output, str) else json.dumps(output, indent=2, ensure_ascii=False)
